"""Processor time of this package and of what a user would take instead, in turns.

``OMP_NUM_THREADS=1 python -m experiments.costs PART... [--medquad PATH]``; the parts:

- ``encoding``: passages and their tokens, and the hours that follow for collections;
- ``question``: a search in an index, next to pyterrier_dr (needs MedQuAD and ``[openvino]``);
- ``reranking``: MaxSim, GraphMaxSim and HGAT by stored token vectors, next to PyLate where it can be imported, as after
  ``pip install --no-deps pylate==1.6.0`` (needs MedQuAD);
- ``contextualizing``: HGAT, next to encoding;
- ``pairs``: LGRe, next to a cross-encoder, in scoring and training;
- ``attention``: both hops of the GNN-encoder, next to PyTorch Geometric's GATConv.

A table has milliseconds per unit and the ratio to the first program of each task.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyterrier_dr import FlexIndex, SBertBiEncoder
from torch import Tensor, nn
from torch_geometric.nn import GATConv
from transformers import AutoModelForSequenceClassification

import pyterrier_graph as ptg
from experiments import scale
from experiments.collections.medquad import read_medquad
from experiments.harness.command import add_options
from experiments.harness.cost import Programs, compare, random_text
from experiments.harness.synthetic import document
from pyterrier_graph.encoders.checkpoints import DType
from pyterrier_graph.encoders.names import resolve
from pyterrier_graph.encoders.openvino_encoder import load_encoder
from pyterrier_graph.gnn_encoder.equations import BipartiteAttention
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.lgre.equations import LGRe

try:
    from pylate.rank import rerank  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    rerank = None

QUESTION = "how is high blood pressure in pregnancy treated"
CORES, SIZES = 2, (1_000, 100_000, 1_000_000, 10_000_000)  # for the hours
DTYPES: tuple[DType, ...] = ("float32", "auto")  # auto is bfloat16 where the processor has it
OPENVINO = "OpenVINOEncoder"
HGATS = {"BASE": ptg.HGATConfig("BASE"), "paper, NO_LB_NS": ptg.HGATConfig.paper("NO_LB_NS")}
LGRES: dict[str, dict[str, Any]] = {
    "last layer, T = 1": {"layers": (-1,), "steps": 1},
    "all layers, T = 2": {"layers": None, "steps": 2},
}
DOCUMENTS = ((64, False), (200, True))  # passages of a document, and whether in one section
TEXTS, QUERY_TOKENS = 4, 8  # of a batch of pairs
DIMENSION, HEADS, EDGES = 384, 4, 25  # of graph attention; passages of a query


def main(arguments: Sequence[str] | None = None) -> dict[str, pd.DataFrame]:
    """Prints a table for each part."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    command.add_argument("--medquad", type=Path, help="the folder of MedQuAD's archive")
    add_options(
        command,
        "sizes",
        encoder=("all-MiniLM-L6-v2", "of all parts"),
        passages=(200, "passages that are encoded or contextualized"),
        indexed=(6000, "passages of an index"),
        candidates=(100, "passages of a query that are reranked"),
        tokens=(128, "tokens of a text of a pair, or of a passage that is reranked"),
        nodes=(100_000, "passages of graph attention; half as many queries"),
        rounds=(5, "rounds, of which the fastest counts"),
    )
    options = command.parse_args(arguments)
    if options.medquad is None and {"question", "reranking"} & {*options.parts}:
        command.error("question and reranking need --medquad")
    tables = {}
    for part in options.parts:
        with TemporaryDirectory() as folder:
            tables[part] = PARTS[part](options, Path(folder))
    return tables


def encoding(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """Milliseconds for a passage of 60 words, and the hours that follow for collections.

    A GraphIndex encodes each passage once. Everything else that it does is measured by the step ``GraphIndex`` of
    :mod:`experiments.scale`, and takes one core.
    """
    texts = [random_text(np.random.default_rng(n), 60) for n in range(options.passages)]
    checkpoint = resolve(options.encoder)
    peer = SBertBiEncoder(checkpoint, batch_size=32, verbose=False)
    vectors: dict[str, Callable[[list[str]], Any]] = {
        "pyterrier_dr's SBertBiEncoder": peer.encode_docs
    }
    vectors["sentence-transformers"] = partial(peer.model.encode, batch_size=32)
    for dtype in DTYPES:
        encoder = ptg.DualEncoder(checkpoint, dtype=dtype, verbose=False)
        vectors[f"DualEncoder, {dtype}"] = encoder.encode_docs
    vectors[OPENVINO] = load_encoder(checkpoint).encode_docs
    tasks: dict[str, Programs] = {
        "vectors": {name: partial(encode, texts) for name, encode in vectors.items()},
        "token vectors": {
            f"TokenEncoder, {dtype}": partial(
                ptg.TokenEncoder(checkpoint, dtype=dtype).encode_passages, texts
            )
            for dtype in DTYPES
        },
    }
    table = compare(tasks, options.rounds, len(texts))
    _, rest, *_ = scale.run(scale.GRAPH_INDEX, options.indexed, folder)
    ms = table["ms"].droplevel("task") / CORES
    ms["GraphIndex"] = ms[OPENVINO] + rest / 1000
    hours = pd.DataFrame({f"{size:,}": ms * size / 3_600_000 for size in SIZES})
    print(f"\nhours on {CORES} cores:", hours.round(4).to_string(), sep="\n")
    return table


def question(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """A question to an index, and its parts."""
    docs = read_medquad(options.medquad, passages=options.indexed, verbose=False)
    index = ptg.GraphIndex(folder / "index", verbose=False).index(docs.get_corpus_iter())
    peer = SBertBiEncoder(resolve(options.encoder), verbose=False)
    plain = FlexIndex(folder / "plain.flex", verbose=False)
    (peer.doc_encoder() >> plain).index(index.graph.get_corpus_iter())
    network = peer.model
    encoder = load_encoder(options.encoder)
    dense = peer.query_encoder() >> plain.np_retriever(num_results=10)
    tasks: dict[str, Programs] = {
        "encode": {
            "sentence-transformers": partial(network.encode, [QUESTION]),
            OPENVINO: partial(encoder.encode_queries, [QUESTION]),
        },
        f"a question to {len(index):,} passages": {
            "pyterrier_dr: SBertBiEncoder >> FlexIndex": partial(dense.search, QUESTION),
            "index.dense(10)": partial(index.dense(10).search, QUESTION),
            "index.bm25(10)": partial(index.bm25(10).search, QUESTION),
            "index.hybrid(10)": partial(index.hybrid(10).search, QUESTION),
            "index.search, with reasons": partial(index.search, QUESTION),
        },
    }
    return compare(tasks, options.rounds)


def reranking(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """A query whose candidates are drawn at random; the models encode it, PyLate gets the vectors of both.

    PyLate also ranks the candidates together with the neighbors that a graph model compares with the query.
    """
    collection = read_medquad(options.medquad, passages=options.indexed, verbose=False)
    graph = ptg.DocumentGraph(folder / "graph", verbose=False).index(collection.get_corpus_iter())
    encoder = ptg.TokenEncoder(options.encoder, max_passage_tokens=options.tokens)
    store = ptg.TokenStore(folder / "tokens", verbose=False).build(graph, encoder)
    shared: dict[str, Any] = {"tokens": store, "verbose": False}
    hgat = ptg.HGATReranker(graph, encoder, **shared)
    hgat.contextualized = hgat.contextualize(folder / "contextualized")
    models: dict[str, Any] = {
        "MaxSim": ptg.GraphMaxSim(graph, encoder, {}, **shared),
        "GraphMaxSim": ptg.GraphMaxSim(graph, encoder, **shared),
        "HGAT, contextualized": hgat,
    }
    random = np.random.default_rng(0)
    nodes = random.choice(graph.passage_nodes, options.candidates, replace=False)
    ids = graph.ids_of(nodes)
    run = pd.DataFrame({"qid": "1", "query": QUESTION, "docno": ids})
    programs: dict[str, Callable[[], Any]] = {}
    relations = {
        "": [],
        " with GraphMaxSim's neighbors": [*models["GraphMaxSim"].weights],
        " with HGAT's neighbors": [*(hgat.config.matches or ())],
    }
    for name, paths in relations.items() if rerank is not None else ():
        neighbors = [graph.neighbors(nodes, path)[1] for path in paths]
        compared = np.unique(np.concatenate([nodes, *neighbors]))
        query, states = encoder.encode_queries([QUESTION]), store.states(compared)
        passages = [states[number] for number in range(len(states))]
        call = partial(rerank, [graph.ids_of(compared)], [query[0]], [passages])
        programs[f"PyLate's rank.rerank{name}"] = call
    programs["encoding of the query"] = partial(encoder.encode_queries, [QUESTION])
    programs |= {name: partial(model, run) for name, model in models.items()}
    return compare({f"{len(run)} passages": programs}, options.rounds)


def contextualizing(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """Documents of 64 passages of 40 words in sections of eight, or of one section of 200."""
    tasks, counts, paths = dict[str, Programs](), dict[str, int](), itertools.count()
    for dtype, (length, flat) in itertools.product(DTYPES, DOCUMENTS):
        numbers = range(-(-options.passages // length))
        graph = MemoryGraph([document(n, length, 40, flat=flat) for n in numbers])
        encoder = ptg.TokenEncoder(options.encoder, device="cpu", dtype=dtype)
        store = ptg.TokenStore(folder / f"{next(paths)}", verbose=False).build(graph, encoder)
        shared: dict[str, Any] = {"tokens": store, "device": "cpu", "dtype": dtype}
        texts = graph.texts(graph.passage_nodes)
        programs: dict[str, Callable[[], Any]] = {
            "encoding": partial(encoder.encode_passages, texts)
        }
        for name, config in HGATS.items():
            model = ptg.HGATReranker(graph, encoder, config=config, verbose=False, **shared)

            def contextualize(model: Any = model) -> Any:
                return model.contextualize(folder / f"{next(paths)}")

            programs[f"HGAT, {name}"] = contextualize
        task = f"{dtype}: {length} passages in {'one section' if flat else 'sections'}"
        tasks[task], counts[task] = programs, len(texts)
    return compare(tasks, options.rounds, counts)


def pairs(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """A batch without padding, in which every other document is relevant."""
    segments = torch.ones(TEXTS, options.tokens, dtype=torch.long)
    segments[:, : QUERY_TOKENS + 2] = 0
    segments[:, [0, QUERY_TOKENS + 1, -1]] = -1

    def load() -> Any:
        kind = AutoModelForSequenceClassification
        return kind.from_pretrained(resolve(options.encoder), num_labels=1)

    models = {"cross-encoder": load()}
    for name, changes in LGRES.items():
        models[f"LGRe, {name}"] = LGRe(load(), ptg.LGReConfig(**changes, init="identity"))
    ids = torch.randint(5, load().config.vocab_size, segments.shape)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(segments)}
    tasks: dict[str, Programs] = {
        action.__name__: {
            n: partial(action, model, inputs, segments) for n, model in models.items()
        }
        for action in (score, train)
    }
    return compare(tasks, options.rounds, TEXTS)


def score(model: nn.Module, inputs: dict[str, Tensor], segments: Tensor) -> None:
    """Scores a batch, without gradients."""
    with torch.inference_mode():
        model.eval()(**inputs, **{"segments": segments} if isinstance(model, LGRe) else {})


def train(model: nn.Module, inputs: dict[str, Tensor], segments: Tensor) -> None:
    """Computes loss and gradients of a batch."""
    model.train().zero_grad()
    relevant = torch.arange(len(segments)) % 2 == 0
    if isinstance(model, LGRe):
        output = model(**inputs, segments=segments)
        ptg.LGReLoss()(output, segments, relevant.unflatten(0, (-1, 2))).backward()
    else:
        scores = model(**inputs).logits[:, 0]
        (1 + scores[~relevant] - scores[relevant][:, None]).relu().mean().backward()


def attention(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """From passages to queries and back, with equal weights and outcome; raises AssertionError if PyG differs."""
    torch.manual_seed(0)
    passages, queries = options.nodes, options.nodes // 2
    query = torch.arange(queries).repeat_interleave(EDGES)
    retrieved = torch.randint(passages, (queries * EDGES,))
    to_queries = torch.stack([retrieved, query])  # (2, edges)
    to_passages = to_queries.flip(0)[:, retrieved.argsort(stable=True)]
    p, q = torch.randn(passages, DIMENSION), torch.randn(queries, DIMENSION)
    layers = [BipartiteAttention(DIMENSION, HEADS) for _ in range(2)]
    convolutions = [*map(convolution_like, layers)]
    edges = with_own(to_queries, passages, queries), with_own(to_passages, queries, passages)

    @torch.inference_mode()
    def ours() -> Tensor:
        hop = layers[0]((p, q), to_queries)
        return layers[1]((hop, p), to_passages)

    @torch.inference_mode()
    def theirs() -> Tensor:
        hop = convolutions[0]((torch.cat([p, q]), q), edges[0])
        return convolutions[1]((torch.cat([hop, p]), p), edges[1])

    assert torch.allclose(ours(), theirs(), atol=1e-4)
    programs = {"PyG's GATConv": theirs, "bipartite attention": ours}
    return compare({f"{passages:,} passages": programs}, options.rounds, passages)


def convolution_like(layer: BipartiteAttention) -> GATConv:
    """PyG's layer with the same weights."""
    size = DIMENSION // HEADS
    made = GATConv((DIMENSION, DIMENSION), size, HEADS, add_self_loops=False, bias=False)
    made.lin_src.weight.data = layer.source.weight.data
    made.lin_dst.weight.data = (layer.target or layer.source).weight.data
    made.att_dst.data, made.att_src.data = layer.attention.data[:1], layer.attention.data[1:]
    return made


def with_own(edge_index: Tensor, sources: int, targets: int) -> Tensor:
    """Edges where each target is one more source, as in Eq. 6 and 8, shape (2, edges + targets)."""
    target = torch.arange(targets)
    return torch.cat([edge_index, torch.stack([sources + target, target])], 1)


PARTS: dict[str, Callable[[argparse.Namespace, Path], pd.DataFrame]] = {
    part.__name__: part
    for part in (encoding, question, reranking, contextualizing, pairs, attention)
}


if __name__ == "__main__":
    main()
