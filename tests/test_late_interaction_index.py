"""The late-interaction index: what it finds against exact scores of all passages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import pyterrier_graph as ptg
from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.retrieve.late_interaction_index import LateInteractionIndex, default_factory

WEIGHTS = {"title": 0.9, "title/title": 0.7, "order": 0.5, "order_i": 0.0, "titles": 0.3}
ALL = 10_000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ptg.DocumentGraph:
    """The small corpus on disk."""
    return ptg.DocumentGraph(tmp_path_factory.mktemp("graph") / "graph").index(tiny.documents(), verbose=False)


@pytest.fixture(scope="module")
def tokens(graph: ptg.DocumentGraph, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Its token vectors."""
    return TokenStore(tmp_path_factory.mktemp("tokens") / "tokens").build(graph, tiny.encoder(), verbose=False)


@pytest.fixture(scope="module")
def index(tokens: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> LateInteractionIndex:
    """Their index."""
    return LateInteractionIndex(tmp_path_factory.mktemp("index") / "index").index(tokens, verbose=False)


def maxsim(graph: ptg.DocumentGraph, tokens: TokenStore, **options: object) -> GraphMaxSim:
    """A GraphMaxSim with stored tokens."""
    options = {"weights": WEIGHTS, "tokens": tokens, "verbose": False, **options}
    return GraphMaxSim(graph, tiny.encoder(), **options)  # type: ignore[arg-type]


def ranking_of_all(reranker: pt.Transformer, num_results: int) -> pd.DataFrame:
    """The best passages of each query, all of which are scored."""
    scored = reranker(tiny.run())
    return scored[scored["rank"] < num_results].sort_values(["qid", "rank"], ignore_index=True)


def assert_same_ranking(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compares scores, and the passages where scores do not tie."""
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)
    assert found["qid"].tolist() == expected["qid"].tolist()
    for qid, part in expected.groupby("qid"):
        clear = part[part["score"] > part["score"].min() + 1e-5]
        assert set(clear["docno"]) <= set(found.loc[found["qid"] == qid, "docno"])


@pytest.mark.parametrize("options", [{}, {"weights": {}}, {"token_weights": "idf"}, {"skip_tokens": True}])
def test_retrieving_is_reranking_everything(
    graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex, options: dict[str, object]
) -> None:
    reranker = maxsim(graph, tokens, **options)
    retriever = index.retriever(reranker, 5, nearest=ALL, candidates=5)
    assert_same_ranking(retriever(tiny.topics()), ranking_of_all(reranker, 5))


def test_neighbors_lead_to_passages(graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex) -> None:
    """With so few nearest tokens that none is of a passage, passages are found through titles only."""
    topics = pd.DataFrame([{"qid": "1", "query": "lambda"}])
    alone = index.retriever(maxsim(graph, tokens, weights={}), 100, nearest=1)(topics)
    through = index.retriever(maxsim(graph, tokens, weights={"title": 1.0}), 100, nearest=1)(topics)
    assert set(alone["docno"]) < set(through["docno"])
    titled = {docno for docno in through["docno"] if docno.endswith(("p1", "p2"))}
    assert titled


def test_weights_may_change_without_a_new_index(
    graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex
) -> None:
    reranker = maxsim(graph, tokens)
    retriever = index.retriever(reranker, 4, nearest=ALL)
    retriever(tiny.topics())
    reranker.weights = {"title": 1.0}
    assert_same_ranking(retriever(tiny.topics()), ranking_of_all(reranker, 4))


@pytest.mark.parametrize("variant", ["NO_LB", "NO_LB_NS"])
def test_hgat_retrieves(graph: ptg.DocumentGraph, tokens: TokenStore, tmp_path: Path, variant: str) -> None:
    config = ptg.HGATConfig(variant, heads=2, registers=2, init="random", dimension=8, relations=("title", "order"))
    hgat = HGATReranker(graph, tiny.encoder(), config=config, tokens=tokens, verbose=False)
    hgat.contextualized = hgat.contextualize(tmp_path / "contextualized")
    index = LateInteractionIndex(tmp_path / "index").index(hgat.contextualized, verbose=False)
    retriever = index.retriever(hgat, 6, nearest=ALL, candidates=18)
    assert_same_ranking(retriever(tiny.topics()), ranking_of_all(hgat, 6))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6))
def test_scores_are_exact_whatever_is_found(nearest: int, num_results: int) -> None:
    graph, tokens, index = _shared()
    reranker = maxsim(graph, tokens)
    found = index.retriever(reranker, num_results, nearest=nearest)(tiny.topics())
    exact = reranker(tiny.run()).set_index(["qid", "docno"])["score"]
    np.testing.assert_allclose(found["score"], exact.loc[pd.MultiIndex.from_frame(found[["qid", "docno"]])], atol=1e-5)
    assert (found.groupby("qid")["score"].diff().dropna() <= 0).all()
    assert found.groupby("qid")["rank"].apply(list).map(lambda ranks: ranks == [*range(len(ranks))]).all()


def test_kinds_of_index(graph: ptg.DocumentGraph, tokens: TokenStore, tmp_path: Path) -> None:
    """An approximate index with all of its lists searched finds nearly what an exact one does."""
    reranker = maxsim(graph, tokens)
    for number, factory in enumerate(["Flat", "IVF4,Flat", "IVF4,SQ8", "IVF2,PQ8x4fs"]):
        index = LateInteractionIndex(tmp_path / str(number)).index(tokens, factory=factory, verbose=False)
        assert index.meta["factory"] == factory and len(index) == tokens.meta["tokens"]
        found = index.retriever(reranker, 5, nearest=ALL, probes=9, candidates=18)(tiny.topics())
        assert_same_ranking(found, ranking_of_all(reranker, 5))


def test_default_factory() -> None:
    assert default_factory(1000, 128) == "Flat"
    assert default_factory(1_000_000, 128) == "IVF2048,PQ64x4fs"
    assert default_factory(1_000_000, 15) == "Flat"


class TestContract(
    pt.testing.transformer_test_class(  # type: ignore[misc]
        lambda: _shared()[2].retriever(maxsim(*_shared()[:2]), 3, nearest=ALL)
    )
):
    """What every transformer has to do."""


def test_transformer_contract(graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex) -> None:
    retriever = index.retriever(maxsim(graph, tokens), 3, nearest=ALL)
    assert pt.inspect.transformer_inputs(retriever) == [["qid", "query"]]
    assert pt.inspect.transformer_outputs(retriever, ["qid", "query"]) == ["qid", "query", "docno", "score", "rank"]
    empty = retriever(tiny.topics().head(0))
    assert [*empty.columns] == [*retriever(tiny.topics()).columns] and not len(empty)
    both = (retriever % 2)(tiny.topics())
    assert both.groupby("qid").size().eq(2).all()
    compiled = (retriever % 2).compile()
    pd.testing.assert_frame_equal(compiled(tiny.topics()), both)
    assert retriever.fuse_rank_cutoff(5) is None
    assert repr(retriever).startswith(repr(index)) and "nearest=10000" in repr(retriever)


def test_index_opens_again(graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex) -> None:
    reranker = maxsim(graph, tokens)
    again = LateInteractionIndex(index.path)
    pd.testing.assert_frame_equal(
        again.retriever(reranker, 3)(tiny.topics()), index.retriever(reranker, 3)(tiny.topics())
    )
    assert again.verify(verbose=False) is again
    with pytest.raises(FileExistsError, match="exists already"):
        index.index(tokens)


def test_bad_input(graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex, tmp_path: Path) -> None:
    reranker = maxsim(graph, tokens)
    with pytest.raises(TypeError, match="a GraphMaxSim or an HGATReranker"):
        index.retriever("maxsim")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give it tokens="):
        index.retriever(GraphMaxSim(graph, tiny.encoder()))
    with pytest.raises(ValueError, match="use first_stage=0"):
        index.retriever(maxsim(graph, tokens, first_stage=0.5))
    with pytest.raises(ValueError, match="contextualize"):
        index.retriever(HGATReranker(graph, tiny.encoder(), config=ptg.HGATConfig(heads=2), tokens=tokens))
    with pytest.raises(ValueError, match="candidates must be .* 10"):
        index.retriever(reranker, 10, candidates=9)
    with pytest.raises(ValueError, match="nearest"):
        index.retriever(reranker, nearest=0)
    titled = TokenStore(tmp_path / "titled").build(graph, tiny.encoder(), titles=True, verbose=False)
    with pytest.raises(ValueError, match=r"holds other vectors .*titles"):
        index.retriever(maxsim(graph, titled))
    with pytest.raises(TypeError, match="a TokenStore"):
        LateInteractionIndex(tmp_path / "a").index(graph)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="factory='nothing'"):
        LateInteractionIndex(tmp_path / "b").index(tokens, factory="nothing")
    assert not (tmp_path / "b").exists()
    with pytest.raises(FileNotFoundError):
        LateInteractionIndex(tmp_path / "none").retriever(reranker)
    with pytest.raises(ValueError, match="query"):
        index.retriever(reranker)(pd.DataFrame([{"qid": "1", "query": " "}]))


def test_no_token_vectors(tmp_path: Path) -> None:
    empty = StructuredDocument("d", (Node("section", "", -1), Node("passage", "", 0)))
    graph = ptg.DocumentGraph(tmp_path / "graph").index([empty], verbose=False)
    tokens = TokenStore(tmp_path / "tokens").build(graph, tiny.encoder(), verbose=False)
    with pytest.raises(ValueError, match="nothing to index"):
        LateInteractionIndex(tmp_path / "index").index(tokens)


_SHARED: list[tuple[ptg.DocumentGraph, TokenStore, LateInteractionIndex]] = []


def _shared() -> tuple[ptg.DocumentGraph, TokenStore, LateInteractionIndex]:
    """Graph, tokens and index for tests that cannot have fixtures."""
    return _SHARED[0]


@pytest.fixture(scope="module", autouse=True)
def _share(graph: ptg.DocumentGraph, tokens: TokenStore, index: LateInteractionIndex) -> None:
    _SHARED[:] = [(graph, tokens, index)]
