"""Targets that learn from frames, and that build artifacts from them."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pyterrier as pt
import tiny
from test_dual_encoder import QRELS, RUN, TOPICS
from test_dual_encoder import examples as good_examples

import pyterrier_graph as ptg
from pyterrier_graph.patents import DocumentFrequencies

from . import world
from .frames import changed_frame, few, few_documents
from .running import target
from .texts import RECORDS, changed_record
from .values import VALUES, changed_json


def fit(name: str, run: Any, qrels: Any, model: str | None = None) -> None:
    """A target: a model learns from a changed run, changed judgments, or changed validation queries."""

    def give(random: Random) -> None:
        learner = copy.copy(world.reranker(model or name))
        if getattr(learner, "network", None) is not None:
            learner = learner.apply_attributes(verbose=False)
        frames = [run(), qrels(), run(), qrels()]
        place = random.randrange(4)
        frames[place] = changed_frame(random, frames[place])
        if random.random() < 0.1:
            frames[random.randrange(4)] = None
        learner.fit(*frames[: 4 if place > 1 or random.random() < 0.3 else 2])

    target(f"fit/{name}")(give)


for _name in ("evidence", "maxsim", "maxsim-all", "hgat"):
    fit(_name, few_documents, tiny.qrels)
for _name in ("maxsim-candidates", "hgat-candidates"):
    fit(_name, world.candidates, tiny.qrels)
for _name in ("lgre", "cross-encoder"):
    fit(_name, few, tiny.qrels)
for _name in ("gnn", "mean"):
    fit(_name, tiny.topics, tiny.qrels)


@target("fit/dual")
def dual(random: Random) -> None:
    """Examples and validation queries."""
    learner = world.reranker("dual").apply_attributes(verbose=False)
    examples = good_examples().to_pandas()
    kind = random.randrange(3)
    given: Any = changed_frame(random, examples) if kind == 0 else good_examples()
    learner.fit_examples(
        given,
        changed_frame(random, RUN) if kind == 1 else RUN,
        changed_frame(random, QRELS) if kind == 2 else QRELS,
    )


@target("fit/mining")
def mining(random: Random) -> None:
    """Topics and judgments for the miner."""
    if random.random() < 0.5:
        world.reranker("mining").labeled(changed_frame(random, TOPICS), QRELS)
    else:
        world.reranker("mining").labeled(TOPICS, changed_frame(random, QRELS))


@target("fit/hybrid")
def hybrid(random: Random) -> None:
    """The weights of two pipelines."""
    run = few()[["qid", "docno", "score", "rank"]]
    parts = [pt.apply.generic(lambda topics: run[run["qid"].isin(topics["qid"])]) for _ in range(2)]
    frames = [tiny.topics(2), tiny.qrels(2), tiny.topics(2), tiny.qrels(2)]
    place = random.randrange(4)
    frames[place] = changed_frame(random, frames[place])
    ptg.Hybrid(*parts, verbose=False).fit(*frames[: random.choice([2, 4])])


@target("build/query-graph")
def query_graph(random: Random) -> None:
    """Topics, judgments and results of a graph of queries; nothing is left behind by an error."""
    frames = [tiny.topics(), tiny.qrels(), few_documents()]
    place = random.randrange(3)
    frames[place] = changed_frame(random, frames[place])
    topics, qrels, results = frames
    passages: Any = [f"d{d}%p{p}" for d in range(6) for p in range(3)]
    if random.random() < 0.1:
        passages = changed_json(random, passages, VALUES)
    with tempfile.TemporaryDirectory() as folder:
        graph = ptg.QueryPassageGraph(Path(folder, "graph"))
        try:
            if place == 2 or random.random() < 0.3:
                graph.from_results(results, passages, k=3, qrels=qrels, verbose=False)
            else:
                graph.build(topics, passages, pt.apply.generic(lambda _: results), k=3, qrels=qrels, verbose=False)
        except Exception:
            assert not [*Path(folder).iterdir()]
            raise
        assert graph.built() and graph.to_scipy()


@target("build/document-graph")
def document_graph(random: Random) -> None:
    """Changed records; nothing is left behind by an error."""
    records = [changed_record(random, record) for record in random.sample(RECORDS, k=2)]
    with tempfile.TemporaryDirectory() as folder:
        graph = ptg.DocumentGraph(Path(folder, "graph"))
        try:
            graph.index(
                records, read=random.choice([ptg.read_record, ptg.StructuredDocument.from_record]), verbose=False
            )
        except Exception:
            assert not [*Path(folder).iterdir()]
            raise
        assert graph.texts(graph.nodes_of(graph.ids_of(graph.passage_nodes))) == graph.texts(graph.passage_nodes)


@target("build/frequencies")
def frequencies(random: Random) -> None:
    """Changed records with texts and languages."""
    records = [changed_json(random, {"docno": "1", "text": "alpha beta", "language": "EN"}, VALUES) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            DocumentFrequencies(Path(folder, "counts")).index(records, verbose=False)
        except Exception:
            assert not [*Path(folder).iterdir()]
            raise
