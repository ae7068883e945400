"""Runs this package behind Terrier, for those who have Terrier's jars (or a network, by which PyTerrier gets them).

    python tests/terrier_check.py VASWANI [--only NAME ...] [--queries N] [--folder FOLDER]

VASWANI is a folder with the collection in TREC's format: ``doc-text.trec``, ``query-text.trec`` and ``qrels``, such as
``tests/fixtures/vaswani_npl`` in PyTerrier's repository. It is indexed with Terrier; then each check is run. A table
says what passed, what failed and why, and what was skipped. The exit status is the number of failures, 100 at most.

``--first-stage pisa`` runs what does not need Terrier on PISA, which checks the checks.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import os
import re
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyterrier as pt
from ir_measures import AP, RR, nDCG

import pyterrier_graph as ptg

ROOT = Path(__file__).resolve().parent.parent
BM25_AP, TOLERANCE = 0.2965, 0.001  # Terrier 5 with its defaults on Vaswani
DOCUMENTS = 10  # of each query that are reranked
VASWANI = "irds:vaswani"


class Skipped(Exception):  # noqa: N818  # it is no error
    """Says why a check cannot be run here."""


@dataclass
class Collection:
    """A collection in TREC's format, with what PyTerrier's datasets have."""

    documents: dict[str, str]
    topics: pd.DataFrame
    qrels: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Collection:
        """Reads a folder."""
        missing = [name for name in ("doc-text.trec", "query-text.trec", "qrels") if not (folder / name).exists()]
        if missing:
            raise SystemExit(
                f"{folder} has no {', '.join(missing)}: give a folder with the collection in TREC's format"
            )
        texts = re.findall(
            r"<DOC>\s*<DOCNO>\s*(\S+?)\s*</DOCNO>(.*?)</DOC>", (folder / "doc-text.trec").read_text("utf-8"), re.DOTALL
        )
        queries = re.findall(
            r"<num>\s*(\S+?)\s*</num>\s*<title>(.*?)</title>",
            (folder / "query-text.trec").read_text("utf-8"),
            re.DOTALL,
        )
        topics = pd.DataFrame([{"qid": qid, "query": " ".join(text.split()).lower()} for qid, text in queries])
        documents = {docno: " ".join(text.split()) for docno, text in texts}
        return cls(documents, topics, pt.io.read_qrels(str(folder / "qrels")))

    def get_corpus_iter(self, verbose: bool = False) -> Iterator[dict[str, str]]:
        """The documents."""
        return ({"docno": docno, "text": text} for docno, text in self.documents.items())

    def get_topics(self, variant: str | None = None) -> pd.DataFrame:
        """The queries."""
        return self.topics

    def get_qrels(self, variant: str | None = None) -> pd.DataFrame:
        """The judgments."""
        return self.qrels

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        """Adds texts to documents."""
        return pt.apply.generic(lambda found: found.assign(text=found["docno"].map(self.documents)))


class TerrierStage:
    """A first stage on Terrier."""

    name = "terrier"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: Any = None

    def build(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents with their texts, and the positions of words, which SDM needs."""
        indexer = pt.IterDictIndexer(str(self.folder.absolute()), meta={"docno": 100, "text": 8192}, blocks=True)
        self.index = pt.IndexFactory.of(indexer.index(documents))

    def bm25(self, **options: Any) -> pt.Transformer:
        """Queries in, documents out."""
        return pt.terrier.Retriever(self.index, wmodel="BM25", **options)

    def second(self) -> pt.Transformer:
        """Another weighting model."""
        return pt.terrier.Retriever(self.index, wmodel="TF_IDF")

    def texts(self, collection: Collection) -> Any:
        """What has the texts."""
        return self.index


class PisaStage:
    """A first stage on PISA, whose interface the examples use, too."""

    name = "pisa"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents."""
        from pyterrier_pisa import PisaIndex

        self.index = PisaIndex(str(self.folder), stemmer="porter2")
        self.index.index(documents)

    def bm25(self, **options: Any) -> pt.Transformer:
        """Queries in, documents out."""
        return self.index.bm25(verbose=False, **options)

    def second(self) -> pt.Transformer:
        """Another weighting model."""
        return self.index.qld(verbose=False)

    def texts(self, collection: Collection) -> Any:
        """What has the texts."""
        return collection


class IndexOfExamples:
    """Stands for ``pyterrier_pisa.PisaIndex`` in the examples: the same calls, on a Terrier index."""

    def __init__(self, folder: str, *, stemmer: str | None = None) -> None:
        self._index = pt.terrier.TerrierIndex(os.path.abspath(folder))

    def built(self) -> bool:
        """Whether the index is there."""
        return self._index.built()

    def index(self, documents: Iterable[dict[str, str]]) -> None:
        """Indexes documents; their names are long."""
        self._index.indexer(meta={"docno": 200}).index(documents)

    def bm25(self, *, num_results: int = 1000, verbose: bool = True) -> pt.Transformer:
        """Queries in, documents out."""
        return pt.rewrite.tokenise() >> self._index.bm25(num_results=num_results) >> pt.rewrite.reset()


@dataclass
class Setting:
    """What the checks share: the collection, the first stage, and what is made of them once."""

    collection: Collection
    stage: Any
    folder: Path
    queries: int

    @functools.cached_property
    def topics(self) -> pd.DataFrame:
        """The first queries."""
        return self.collection.topics.head(self.queries)

    @functools.cached_property
    def bm25(self) -> pt.Transformer:
        """The first stage."""
        return self.stage.bm25(num_results=100)

    @functools.cached_property
    def graph(self) -> ptg.DocumentGraph:
        """The graph of the collection."""
        return ptg.DocumentGraph(self.folder / "graph").index(self.collection.get_corpus_iter(), verbose=False)

    @functools.cached_property
    def rerank(self) -> pt.Transformer:
        """Documents in, documents out, ranked by their best passage."""
        maxsim = ptg.GraphMaxSim(self.graph, verbose=False)
        return self.graph.passages() >> maxsim >> pt.text.max_passage()

    @functools.cached_property
    def windows(self) -> pt.Transformer:
        """Documents with texts in, their passages out, scored without an index of them."""
        windows = pt.text.sliding(text_attr="text", length=40, stride=20, prepend_attr=None)
        return windows >> ptg.CandidateGraph(verbose=False) >> ptg.GraphMaxSim(verbose=False)

    @functools.cached_property
    def texts(self) -> pt.Transformer:
        """Adds the texts that the index stores."""
        return pt.text.get_text(self.stage.texts(self.collection), ["text"])

    def terrier(self) -> None:
        """Skips a check that needs Terrier."""
        if self.stage.name != "terrier":
            raise Skipped("needs Terrier")

    def evaluate(self, pipeline: pt.Transformer, measure: Any, topics: pd.DataFrame | None = None) -> float:
        """The mean of a measure."""
        topics = self.topics if topics is None else topics
        found = pt.Experiment([pipeline], topics, self.collection.qrels, [measure], filter_by_qrels=True)
        return float(found[str(measure)].iloc[0])


CHECKS: dict[str, Callable[[Setting], str | None]] = {}


def check(function: Callable[[Setting], str | None]) -> Callable[[Setting], str | None]:
    """Adds a check, whose name is that of its function. It returns what is worth telling, or raises."""
    CHECKS[function.__name__.replace("_", " ").strip()] = function
    return function


def is_ranking(found: pd.DataFrame, topics: pd.DataFrame) -> None:
    """Raises unless each query has documents with finite scores and ranks, and its own text."""
    assert {"qid", "query", "docno", "score", "rank"} <= {*found.columns}, [*found.columns]
    assert {*found["qid"]} == {*topics["qid"]}, "queries are missing"
    assert np.isfinite(found["score"]).all()
    assert not found.duplicated(["qid", "docno"]).any()
    queries = found.drop_duplicates("qid").set_index("qid")["query"]
    assert queries.to_dict() == topics.set_index("qid")["query"].to_dict(), "the query is not the original one"


# --- the first stage


@check
def bm25_effectiveness(at: Setting) -> str:
    topics = at.collection.topics
    value = at.evaluate(at.stage.bm25(num_results=1000), AP, topics)
    if at.stage.name == "terrier":
        assert abs(value - BM25_AP) <= TOLERANCE, f"AP is {value:.4f}, not {BM25_AP}"
    return f"AP {value:.4f} of {len(topics)} queries"


@check
def rerank_passages(at: Setting) -> str:
    pipeline = at.bm25 % DOCUMENTS >> at.rerank
    is_ranking(pipeline(at.topics), at.topics)
    values = [at.evaluate(one, nDCG @ 10) for one in (at.bm25 % DOCUMENTS, pipeline)]
    return "nDCG@10 {:.3f}, reranked {:.3f}".format(*values)


@check
def hybrid_with_a_dense_index(at: Setting) -> str:
    index = ptg.GraphMean(at.graph, verbose=False).index(at.folder / "documents.flex")
    hybrid = ptg.Hybrid(at.bm25, index.retriever() >> pt.text.max_passage())
    is_ranking(hybrid(at.topics), at.topics)
    return f"nDCG@10 {at.evaluate(hybrid, nDCG @ 10):.3f}"


@check
def retriever_over_contextual_texts(at: Setting) -> None:
    """A lexical index of the graph's passages, whose documents are then reranked."""
    stage = type(at.stage)(at.folder / "passages")
    stage.build({"docno": row["docno"], "text": row["text"]} for row in at.graph.get_corpus_iter(verbose=False))
    pipeline = stage.bm25(num_results=DOCUMENTS) >> ptg.GraphMaxSim(at.graph, verbose=False) >> pt.text.max_passage()
    is_ranking(pipeline(at.topics), at.topics)


# --- PyTerrier's operators


def operator(name: str, make: Callable[[Setting, Any, Any], Any], columns: Sequence[str] = ()) -> None:
    """Adds a check of an operator between the first stage and a pipeline with a graph."""

    def run(at: Setting) -> None:
        first = at.bm25 % DOCUMENTS
        found = make(at, first, first >> at.rerank)(at.topics)
        assert {*found["qid"]} == {*at.topics["qid"]} and {*columns} <= {*found.columns}
        if "score" in found:
            assert np.isfinite(found["score"]).all()

    CHECKS[f"operator {name}"] = run


operator(">>", lambda _, first, graph: first >> (graph % 5))
operator("%", lambda _, first, graph: graph % 3)
operator("+", lambda _, first, graph: first + graph)
operator("*", lambda _, first, graph: 0.5 * graph + first * 2.0)
operator("|", lambda _, first, graph: first | graph)
operator("&", lambda _, first, graph: first & graph)
operator("^", lambda at, first, graph: (graph % 3) ^ at.stage.second() % DOCUMENTS)
operator("**", lambda at, first, graph: first >> (at.rerank ** at.stage.second()), ["features"])


# --- rewriting


def rewritten(at: Setting, pipeline: pt.Transformer) -> str:
    """Reranks what a rewritten query finds, with the query that was asked."""
    found = (pipeline >> pt.rewrite.reset())(at.topics)
    is_ranking(found, at.topics)
    reranked = pipeline % DOCUMENTS >> pt.rewrite.reset() >> at.rerank
    is_ranking(reranked(at.topics), at.topics)
    return f"nDCG@10 {at.evaluate(reranked, nDCG @ 10):.3f}"


@check
def rewrite_RM3(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, at.bm25 >> pt.rewrite.RM3(at.stage.index) >> at.bm25)


@check
def rewrite_Bo1(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, at.bm25 >> pt.rewrite.Bo1QueryExpansion(at.stage.index) >> at.bm25)


@check
def rewrite_SDM(at: Setting) -> str:  # noqa: N802
    at.terrier()
    return rewritten(at, pt.rewrite.SDM() >> at.bm25)


@check
def reset_restores_the_query(at: Setting) -> None:
    """Also without Terrier: any rewriting, its retrieval, and the original query for the graph."""

    def longer(row: Any) -> str:
        return f"{row['query']} system"

    is_ranking((pt.apply.query(longer) >> at.bm25 % DOCUMENTS >> pt.rewrite.reset() >> at.rerank)(at.topics), at.topics)


# --- texts


@check
def text_get_text_sliding_max_passage(at: Setting) -> None:
    passages = (at.bm25 % DOCUMENTS >> at.texts >> at.windows)(at.topics)
    assert passages["docno"].str.contains("%p").all()
    is_ranking((at.bm25 % DOCUMENTS >> at.texts >> at.windows >> pt.text.max_passage())(at.topics), at.topics)


@check
def text_of_the_graph(at: Setting) -> None:
    found = (at.bm25 % DOCUMENTS >> at.graph.passages() >> pt.text.get_text(at.graph, ["text"]))(at.topics)
    assert found["text"].str.len().gt(0).all()


@check
def text_snippets(at: Setting) -> None:
    found = (at.bm25 % 3 >> at.texts >> pt.text.snippets(at.windows, num_psgs=1))(at.topics.head(2))
    assert found["summary"].str.len().gt(0).all()
    assert all(summary in text for summary, text in zip(found["summary"], found["text"], strict=True))


@check
def text_scorer(at: Setting) -> None:
    """Passages that Terrier scores beside the graph's scores."""
    at.terrier()
    windows = pt.text.sliding(text_attr="text", length=40, stride=20, prepend_attr=None)
    scorer = windows >> pt.text.scorer(body_attr="text", wmodel="BM25", background_index=at.stage.index)
    is_ranking((at.bm25 % DOCUMENTS >> at.texts >> scorer >> pt.text.max_passage())(at.topics), at.topics)


# --- learning, tuning, experiments


@check
def features_of_the_index(at: Setting) -> None:
    """Terrier's own features, and those of ``**``, in one learned pipeline."""
    at.terrier()
    terrier = pt.terrier.FeaturesRetriever(at.stage.index, ["WMODEL:TF_IDF", "WMODEL:DPH"], wmodel="BM25")
    found = (terrier % DOCUMENTS)(at.topics)
    assert {len(features) for features in found["features"]} == {2}
    learned(
        at,
        at.bm25 % DOCUMENTS >> (at.rerank ** at.stage.second() ** pt.terrier.Retriever(at.stage.index, wmodel="DPH")),
    )


@check
def learning_to_rank(at: Setting) -> None:
    learned(at, at.bm25 % DOCUMENTS >> (at.rerank ** at.stage.second()))


def learned(at: Setting, features: pt.Transformer) -> None:
    """Trains a forest on features."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(n_estimators=10, random_state=0)
    pipeline = features >> pt.ltr.apply_learned_model(model)
    pipeline.fit(at.topics, at.collection.qrels)
    is_ranking(pipeline(at.topics), at.topics)


@check
def grid_search_over_weights(at: Setting) -> str:
    maxsim = ptg.GraphMaxSim(at.graph, verbose=False)
    pipeline = at.bm25 % DOCUMENTS >> at.graph.passages() >> maxsim >> pt.text.max_passage()
    parameters: Any = {maxsim: {"weights": [{}, {"order": 0.5, "order_i": 0.5}]}}
    options: Any = {"verbose": False, "return_type": "best_setting"}
    value, found = pt.GridSearch(pipeline, parameters, at.topics, at.collection.qrels, "map", **options)
    assert found[0][0] is maxsim and found[0][2] in parameters[maxsim]["weights"]
    return f"weights {found[0][2]}, map {value:.3f}"


@check
def experiment_as_a_tree(at: Setting) -> None:
    """Systems that share their first steps have the same values as one by one."""
    first = at.bm25 % DOCUMENTS
    systems = [first, first >> at.rerank, first >> at.texts >> at.windows >> pt.text.max_passage()]
    measures, names = [nDCG @ 10, RR @ 10, AP], ["BM25", "graph", "windows"]
    options: Any = {"names": names, "filter_by_qrels": True}
    one_by_one, tree = (
        pt.Experiment(systems, at.topics, at.collection.qrels, measures, plan=plan, **options)
        for plan in ("linear", "tree")
    )
    pd.testing.assert_frame_equal(one_by_one, tree)


# --- the examples


def example(name: str, *, terrier_only: bool = False) -> Callable[..., Any]:
    """Adds a check of an example, in a folder of its own, with the first stage where it wants PISA."""

    def add(run: Callable[[Setting, Any], None]) -> Callable[[Setting, Any], None]:
        def checked(at: Setting) -> None:
            if terrier_only:
                at.terrier()
            modules = {}
            if at.stage.name == "terrier":
                modules["pyterrier_pisa"] = types.ModuleType("pyterrier_pisa")
                modules["pyterrier_pisa"].PisaIndex = IndexOfExamples  # type: ignore[attr-defined]
            folder = at.folder / "examples" / name
            folder.mkdir(parents=True)
            get_dataset = pt.get_dataset
            get = mock.patch("pyterrier.get_dataset", lambda of: at.collection if of == VASWANI else get_dataset(of))
            path = mock.patch.object(sys, "path", [str(ROOT / "examples"), str(ROOT / "tests"), *sys.path])
            with mock.patch.dict(sys.modules, modules), get, path, contextlib.chdir(folder):
                sys.modules.pop(name, None)
                run(at, importlib.import_module(name))
                sys.modules.pop(name, None)

        CHECKS[f"example {name}"] = checked
        return run

    return add


def cut(at: Setting) -> Any:
    """Documents that are judged, and a tenth of the others: training and encoding take less time."""
    judged = {*at.collection.qrels.merge(at.topics[["qid"]])["docno"]}
    kept = {
        docno: text for n, (docno, text) in enumerate(at.collection.documents.items()) if docno in judged or n % 10 == 0
    }
    return Collection(kept, at.topics, at.collection.qrels)


@example("existing_index")
def existing_index(at: Setting, module: Any) -> None:
    is_ranking(module.rerank(at.bm25 % DOCUMENTS, at.stage.texts(at.collection))(at.topics), at.topics)
    with mock.patch.object(module, "rerank", lambda first, texts: first % DOCUMENTS >> at.rerank):
        module.main(str(at.stage.folder), VASWANI)


@example("hybrid")
def hybrid(at: Setting, module: Any) -> None:
    with mock.patch.object(at.collection, "documents", cut(at).documents):
        module.main(str(at.stage.folder), VASWANI, "indexes")


@example("quickstart")
def quickstart(at: Setting, module: Any) -> None:
    module.main("indexes", queries=5)


@example("hgat")
def hgat(at: Setting, module: Any) -> None:
    module.main("indexes", queries=5)


@example("lgre", terrier_only=True)
def lgre(at: Setting, module: Any) -> None:
    small = cut(at)
    found = pt.text.get_text(small, ["text"])(module.first_stage(small, Path("index"))(at.topics))
    options = ptg.LGReTraining(epochs=1, pairs_per_epoch=4, validation_candidates=4)
    reranker = ptg.LGReReranker(training=options, verbose=False)
    found = (pt.Transformer.from_df(found) % DOCUMENTS)(at.topics)
    is_ranking(reranker.fit(found, small.qrels).transform(found), at.topics)


@example("pair", terrier_only=True)
def pair(at: Setting, module: Any) -> None:
    short = Collection(cut(at).documents, at.collection.topics.head(2 * at.queries), at.collection.qrels)
    options = ptg.CrossEncoderTraining(epochs=1, pairs_per_epoch=4, validation_candidates=4, ranking="pointwise")
    with (
        mock.patch("pyterrier.get_dataset", lambda _: short),
        mock.patch.object(ptg, "CrossEncoderTraining", lambda **_: options),
    ):
        module.main(VASWANI, folder="pair")


@example("clef_ip", terrier_only=True)
def clef_ip(at: Setting, module: Any) -> None:
    """On the miniature of the collection that the tests write."""
    from clef_ip_miniature import write_miniature

    from pyterrier_graph.datasets import provider

    home = Path("home").absolute()
    write_miniature(home / "clef-ip")
    with mock.patch.dict(os.environ, {"IR_DATASETS_HOME": str(home)}):
        provider.register()
        module.main("indexes", documents=20)


# --- the table


@dataclass
class Outcome:
    """What a check came to."""

    name: str
    result: str
    seconds: float
    told: str = ""
    error: str = field(default="", repr=False)


def run_check(name: str, at: Setting, *, verbose: bool = False) -> Outcome:
    """Runs one check; what it prints is kept for its error."""
    start = time.perf_counter()
    output: Any = sys.stdout if verbose else io.StringIO()
    result, told, error = "passed", "", ""
    try:
        with contextlib.redirect_stdout(output):
            told = CHECKS[name](at) or ""
    except Skipped as reason:
        result, told = "skipped", str(reason)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # Java's errors, and SystemExit of an example
        result, told = "failed", f"{type(problem).__name__}: {problem}".splitlines()[0][:120]
        error = traceback.format_exc()
    return Outcome(name, result, time.perf_counter() - start, told, error)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each check, and a last one that counts."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [f"{one.name:<{width}}  {one.result:<7}  {one.seconds:6.1f} s  {one.told}".rstrip() for one in outcomes]
    counts = [f"{sum(one.result == kind for one in outcomes)} {kind}" for kind in ("passed", "failed", "skipped")]
    return "\n".join([*lines, ", ".join(counts)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks, and prints the table. Returns the number of failures."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("collection", type=Path, help="folder with doc-text.trec, query-text.trec and qrels")
    made.add_argument("--first-stage", choices=["terrier", "pisa"], default="terrier")
    made.add_argument("--only", nargs="+", default=[], help="checks whose names begin so", metavar="NAME")
    made.add_argument("--queries", type=int, default=10, help="of the collection, but for BM25's effectiveness (10)")
    made.add_argument("--folder", type=Path, help="a new folder for what is made; a temporary one, if none is named")
    made.add_argument("--verbose", action="store_true", help="what the examples print")
    options = made.parse_args(arguments)
    names = [name for name in CHECKS if not options.only or name.startswith(tuple(options.only))]
    if not names:
        made.error(f"no check begins with {' or '.join(options.only)}; there are: {', '.join(CHECKS)}")
    collection = Collection.read(options.collection)
    with contextlib.ExitStack() as held:
        folder = options.folder or Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        stage = {"terrier": TerrierStage, "pisa": PisaStage}[options.first_stage](folder / "index")
        start = time.perf_counter()
        stage.build(collection.get_corpus_iter())
        told = f"{len(collection.documents):,} documents"
        outcomes = [Outcome("index", "passed", time.perf_counter() - start, told)]
        at = Setting(collection, stage, folder, options.queries)
        for name in names:
            outcomes.append(run_check(name, at, verbose=options.verbose))
            print(f"{outcomes[-1].result}: {name}", file=sys.stderr, flush=True)
    for outcome in outcomes:
        if outcome.error:
            print(f"--- {outcome.name}\n{outcome.error}", file=sys.stderr)
    print(table(outcomes))
    return min(100, sum(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
