"""Weights of query tokens, tokens that are skipped, and the first stage's share, against loops."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyterrier_graph.documents import Node, StructuredDocument
from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_store import IDS, TokenStore
from pyterrier_graph.encoders.token_weights import Frequencies, count_passages, passage_frequencies
from pyterrier_graph.encoders.word_pieces import WordPieces
from pyterrier_graph.graphs import CandidateGraph, DocumentGraph, MemoryGraph
from pyterrier_graph.graphs.csr import CSR, offsets
from pyterrier_graph.integrity import meta_text
from pyterrier_graph.models.maxsim import graph_maxsim
from pyterrier_graph.models.score_normalization import normalized
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim

MARKS = ("!", ".", "##,")
WORDS = (*tiny.WORDS, *MARKS)
TEXTS = ["alpha beta ! gamma", "alpha . ! .", "alpha mu mu . kappa", "", "! !", "beta alpha lambda"]
QUERIES = {"q1": "alpha mu !", "q2": "kappa", "q3": "! .", "q4": "beta gamma alpha theta"}
ENDS = ("[CLS]", "[SEP]")
OPTIONS: dict[str, Any] = {"token_weights": "idf", "skip_tokens": True, "first_stage": 0.25}


def punctuated(**options: Any) -> TokenEncoder:
    """The small encoder, with punctuation in its vocabulary."""
    return TokenEncoder(tiny.checkpoint(WORDS), max_passage_tokens=24, max_query_tokens=12, device="cpu", **options)


ENCODER = punctuated()


def documents() -> list[StructuredDocument]:
    return [
        StructuredDocument(f"d{n}", (Node("section", title, -1), Node("passage", text, 0), Node("passage", "mu", 0)))
        for n, (text, title) in enumerate(zip(TEXTS, ["kappa .", "", "theta", "!", "mu", "beta"], strict=True))
    ]


GRAPH = MemoryGraph.from_documents(documents())
DOCNOS = GRAPH.ids_of(GRAPH.passage_nodes)


def run() -> pd.DataFrame:
    topics = pd.DataFrame({"qid": QUERIES.keys(), "query": QUERIES.values()})
    frame = topics.merge(pd.DataFrame({"docno": DOCNOS}), how="cross")
    scores = np.random.default_rng(0).normal(10, 3, len(frame))
    return frame.assign(score=scores.round(2))


def reranker(**options: Any) -> GraphMaxSim:
    return GraphMaxSim(
        **{"graph": GRAPH, "encoder": ENCODER, "weights": {"structural": 0.7}, "verbose": False} | options
    )


def pieces(text: str) -> list[str]:
    return ["[CLS]", *text.split(), "[SEP]"] if text else []


def slow_score(query: str, docno: str, weights: dict[str, float], idf: bool, skip: bool) -> float:
    """The sum over query tokens, one token at a time, with weights and masks."""
    node = int(GRAPH.nodes_of([docno])[0])

    def vectors_of(node: int) -> list[torch.Tensor]:
        text = GRAPH.texts(np.array([node]))[0]
        encoded = zip(pieces(text), ENCODER.encode_passages([text])[0], strict=True)
        return [vector for piece, vector in encoded if not skip or piece not in (*ENDS, "!", ".")]

    tokens = [*zip(pieces(query), ENCODER.encode_queries([query])[0], strict=True)]
    if skip:
        tokens = [(piece, vector) for piece, vector in tokens if piece not in ENDS]
    found = Counter(piece for text in GRAPH.texts(GRAPH.passage_nodes) for piece in {*pieces(text)})
    passages = len(GRAPH.passage_nodes)
    value = {
        piece: math.log(1 + (passages - found[piece] + 0.5) / (found[piece] + 0.5))
        for piece, _ in tokens
        if piece not in ENDS
    }
    mean = sum(value[piece] for piece, _ in tokens if piece in value) / sum(piece in value for piece, _ in tokens)
    total = 0.0
    for piece, vector in tokens:
        own = max((float(vector @ other) for other in vectors_of(node)), default=0.0)
        matches = [own]
        for relation, weight in weights.items():
            for neighbor in GRAPH.neighbors(np.array([node]), relation)[1].tolist():
                matches += [weight * float(vector @ other) for other in vectors_of(neighbor)]
        total += (value[piece] / mean if idf and piece in value else 1.0) * max(matches)
    return total


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_equals_the_loops(idf: bool, skip: bool) -> None:
    model = reranker(token_weights="idf" if idf else None, skip_tokens=skip)
    out = model(run())
    slow = [slow_score(q, d, model.weights, idf, skip) for q, d in zip(out["query"], out["docno"], strict=True)]
    np.testing.assert_allclose(out["score"], slow, atol=1e-5)
    parts = model.explain("alpha mu !", "d2%p0")
    assert parts["score"].sum() == pytest.approx(slow[DOCNOS.index("d2%p0")], abs=1e-5)
    assert parts["token"].tolist() == (["alpha", "mu", "!"] if skip else ["[CLS]", "alpha", "mu", "!", "[SEP]"])
    weight = parts.set_index("token")["weight"]
    assert (weight["!"] > weight["alpha"] > weight["mu"]) if idf else (weight == 1).all()
    assert not skip or not {*parts["match"]} & {*ENDS, "!", "."}


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3))
def test_weighted_maxsim_by_loops(seed: int, tokens: int, relations: int, rows: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, context = torch.randn(rows, tokens, generator=draw), torch.randn(rows, relations, tokens, generator=draw)
    context[torch.rand(context.shape, generator=draw) < 0.3] = -torch.inf
    weights, token_weights = torch.rand(relations, generator=draw), torch.rand(tokens, generator=draw)
    slow = [
        sum(
            float(token_weights[t])
            * max([float(own[row, t])] + [float(weights[r] * context[row, r, t]) for r in range(relations)])
            for t in range(tokens)
        )
        for row in range(rows)
    ]
    np.testing.assert_allclose(graph_maxsim(own, context, weights, token_weights), slow, atol=1e-5)
    ones = graph_maxsim(own, context, weights, torch.ones(tokens))
    torch.testing.assert_close(ones, graph_maxsim(own, context, weights))


# --- word pieces and frequencies


def test_kinds_of_word_pieces() -> None:
    kinds = WordPieces.of(ENCODER.network.tokenizer)
    named = dict(zip(kinds._fields, kinds, strict=True))
    found = {name: set(ENCODER.network.tokenizer.convert_ids_to_tokens(np.flatnonzero(a))) for name, a in named.items()}
    assert found["ends"] == {"[CLS]", "[SEP]", "[PAD]"}
    assert found["punctuation"] == set(MARKS)
    assert found["wordless"] == {"[CLS]", "[SEP]", "[PAD]", "[MASK]"}  # [UNK] stands for a word
    colbert = WordPieces.of(TokenEncoder(tiny.checkpoint(("[unused0]", *tiny.WORDS)), max_passage_tokens=9,
                                         max_query_tokens=9, device="cpu").network.tokenizer)  # fmt: skip
    assert colbert.wordless[5] and not colbert.ends[5]


def test_token_ids_are_those_of_the_vectors() -> None:
    texts = ["alpha ! mu", "", "mu " * 99, " "] * 100  # more than are tokenized at once
    ids = ENCODER.token_ids(texts)
    assert np.diff(ids.indptr).tolist() == ENCODER.encode_passages(texts).lengths.tolist()
    assert ENCODER.network.tokenizer.convert_ids_to_tokens(ids.indices[:5]) == ["[CLS]", "alpha", "!", "mu", "[SEP]"]
    assert len(ENCODER.token_ids([])) == 0
    assert ENCODER.tokens("alpha", query=True) == ["[CLS]", "alpha", "[SEP]"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=6))
def test_counts_by_loops(rows: list[list[int]]) -> None:
    ids = CSR(offsets(np.array([len(row) for row in rows], dtype=np.int64)), np.array(sum(rows, []), dtype=np.int64))
    assert count_passages(ids, 7).tolist() == [sum(piece in row for row in rows) for piece in range(7)]


def test_weights_have_mean_one_over_the_words_of_a_query() -> None:
    frequencies = Frequencies(np.array([10, 0, 1, 9, 10]), 10)
    wordless = np.array([True, True, False, False, False])
    weights = frequencies.idf(np.array([0, 2, 2, 3, 4, 1]), wordless)
    assert weights[[0, 5]].tolist() == [1, 1]
    assert weights[1:5].mean() == pytest.approx(1)
    assert weights[1] == weights[2] > weights[3] > weights[4] > 0
    assert frequencies.idf(np.array([0, 1]), wordless).tolist() == [1, 1]
    assert Frequencies(np.zeros(5, dtype=int), 0).idf(np.array([2, 3]), wordless).tolist() == [1, 1]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The graph on disk, and its stored tokens."""
    folder = tmp_path_factory.mktemp("stored")
    graph = DocumentGraph(folder / "graph").index(documents(), verbose=False)
    return SimpleNamespace(graph=graph, tokens=TokenStore(folder / "tokens").build(graph, ENCODER, verbose=False))


def test_counts_are_kept_beside_the_graph(stored: SimpleNamespace) -> None:
    def ids_of(nodes: np.ndarray) -> CSR:
        return ENCODER.token_ids(stored.graph.texts(nodes))

    def no_ids(nodes: np.ndarray) -> CSR:
        raise AssertionError("counted again")

    first = passage_frequencies(stored.graph, ENCODER, ids_of)
    again = passage_frequencies(stored.graph, ENCODER, no_ids)
    np.testing.assert_array_equal(first.counts, again.counts)
    alpha = ENCODER.network.tokenizer.convert_tokens_to_ids("alpha")
    assert first.counts[alpha] == 4 and first.passages == again.passages == 12
    for other in ({"titles": True}, {"encoder": punctuated(batch_size=1)}):
        options = {"encoder": ENCODER, "ids_of": no_ids} | other
        if "titles" in other:
            with pytest.raises(AssertionError, match="counted again"):
                passage_frequencies(stored.graph, **options)
        else:  # the batch size changes nothing
            passage_frequencies(stored.graph, **options)


def test_counts_that_cannot_be_kept(tmp_path: Path) -> None:
    graph = DocumentGraph(tmp_path / "graph").index(documents(), verbose=False)
    (tmp_path / "graph.frequencies").write_text("in the way")
    model = reranker(graph=graph, token_weights="idf")
    with pytest.warns(UserWarning, match="not kept, and counted anew"):
        out = model(run())
    np.testing.assert_allclose(out["score"], reranker(token_weights="idf")(run())["score"], atol=1e-5)


@pytest.mark.parametrize("old", [False, True])
def test_stored_tokens(stored: SimpleNamespace, tmp_path: Path, old: bool) -> None:
    """A store that lacks the word pieces, as an older version wrote it, gives the same scores."""
    tokens = stored.tokens
    if old:
        nodes = np.arange(stored.graph.num_nodes)
        about = {name: tokens.meta[name] for name in ("encoder_sha256", "graph_sha256", "titles")}
        tokens = TokenStore(tmp_path / "old").write(
            lambda some: (tokens.states(some), None), len(nodes), tokens.dimension, about, verbose=False
        )
    assert tokens.has_ids == (not old)
    options: dict[str, Any] = {"token_weights": "idf", "skip_tokens": True}
    out = reranker(graph=stored.graph, tokens=tokens, **options)(run())
    np.testing.assert_allclose(out["score"], reranker(**options)(run())["score"], atol=5e-3)
    assert (Path(tokens.path) / f"{IDS}.u4").exists() == (not old)


def test_without_a_document_graph_candidates_are_counted() -> None:
    frame = run().assign(text=GRAPH.texts(GRAPH.nodes_of(run()["docno"].tolist())))
    some = frame[frame["docno"].isin(DOCNOS[:6])]
    with_graphs = CandidateGraph(verbose=False)(some)
    options = {"weights": {}, "token_weights": "idf", "skip_tokens": True}
    out = reranker(graph=None, **options)(with_graphs)
    alone = pd.concat([reranker(graph=None, **options)(part) for _, part in with_graphs.groupby("qid")])
    np.testing.assert_allclose(out["score"], alone["score"], atol=1e-5)
    counted_over_all = reranker(**options)(some)
    assert np.abs(out["score"] - counted_over_all["score"]).max() > 1e-3


def test_a_query_without_words_keeps_its_ends() -> None:
    invisible = "\u200b"
    counted, weights = reranker(skip_tokens=True, token_weights="idf")._query_tokens(invisible, None)
    assert ENCODER.tokens(invisible, query=True) == [*ENDS]
    assert counted.tolist() == [0, 1] and weights is None
    frame = run().assign(query=invisible)
    assert reranker(**OPTIONS)(frame)["score"].between(0, 1).all()


def test_a_node_may_lose_all_its_tokens() -> None:
    """A passage of punctuation matches with 0, a neighbor of punctuation is no match."""
    packed = TokenStates.pack([torch.eye(3), torch.eye(2, 3)], torch.zeros(0, 3))
    kept = packed.keep(torch.tensor([1, 0, 1, 0, 0]) > 0)
    assert kept.lengths.tolist() == [2, 0] and kept.values.tolist() == [[1, 0, 0], [0, 0, 1]]
    model = reranker(skip_tokens=True)
    assert model(run()).set_index(["qid", "docno"])["score"]["q2", "d4%p0"] == pytest.approx(
        model.explain("kappa", "d4%p0")["score"].sum(), abs=1e-6
    )


# --- the first stage's share


def test_the_share_of_the_first_stage_by_loops() -> None:
    frame, plain = run(), reranker()(run())["score"]
    frame.loc[frame["qid"] == "q2", "score"] = 3.0  # all equal: 0.5 for each
    out = reranker(first_stage=0.3)(frame)
    for qid, part in frame.assign(own=plain).groupby("qid"):
        lowest, highest = part["own"].min(), part["own"].max()
        for row in part.itertuples():
            own = (row.own - lowest) / (highest - lowest)
            first = 0.5 if qid == "q2" else (row.score - part["score"].min()) / np.ptp(part["score"])
            assert out["score"][row.Index] == pytest.approx(0.7 * own + 0.3 * first, abs=1e-6)
    assert reranker(first_stage=1)(run())["docno"].tolist() == run()["docno"].tolist()
    ranks = reranker(first_stage=1)(run())["rank"]
    assert ranks.tolist() == pt.model.add_ranks(run())["rank"].tolist()


def test_the_first_stage_must_have_scores() -> None:
    model = reranker(first_stage=0.5)
    assert pt.inspect.transformer_inputs(model) == [["qid", "docno", "query", "score"]]
    with pytest.raises(pt.validate.InputValidationError, match="put a retriever before, or use first_stage=0"):
        model(run().drop(columns="score"))
    assert pt.inspect.transformer_inputs(reranker()) == [["qid", "docno", "query"]]
    for wrong in (float("nan"), float("inf"), None):
        frame = run()
        frame["score"] = frame["score"].astype(object)
        frame.loc[3, "score"] = wrong
        finite = "first stage.*query 'q1', 'd1%p1' has no finite score"
        with pytest.raises(ValueError, match=f"query 'q1', 'd1%p1' has no score|{finite}"):
            model(frame)
    assert len(model(run().iloc[:0])) == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(-1e6, 1e6)), min_size=1, max_size=8))
def test_normalized_scores(rows: list[tuple[str, float]]) -> None:
    frame = pd.DataFrame(rows, columns=["qid", "score"])
    out = normalized(frame["score"], frame["qid"])
    assert out.between(0, 1).all()
    for _, part in frame.assign(out=out).groupby("qid"):
        if part["score"].nunique() > 1:
            assert (part["out"].min(), part["out"].max()) == (0, 1)
        else:
            assert (part["out"] == 0.5).all()


# --- in pipelines, on disk

TestWeighted = pt.testing.transformer_test_class(lambda: reranker(**OPTIONS))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"token_weights": "tf"}, ValueError, "token_weights must be one of None, 'idf', got 'tf'"),
        ({"skip_tokens": "punctuation"}, TypeError, "skip_tokens must be True or False"),
        ({"first_stage": 1.5}, ValueError, "first_stage must be from 0 to 1, got 1.5"),
        ({"first_stage": True}, ValueError, "first_stage must be a finite number"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        reranker(**wrong)
    ((name, value),) = wrong.items()
    with pytest.raises(error, match=message):
        reranker().set_parameter(name, value)


def test_options_are_saved_shown_and_copied(tmp_path: Path) -> None:
    model = reranker(**OPTIONS).save(tmp_path / "model")
    loaded = GraphMaxSim.load(tmp_path / "model", graph=GRAPH, verbose=False)
    scores = model(run())["score"]
    for other in (loaded, pickle.loads(pickle.dumps(model)), reranker().apply_attributes(**OPTIONS)):
        assert {name: getattr(other, name) for name in OPTIONS} == OPTIONS
        np.testing.assert_allclose(other(run())["score"], scores, atol=1e-6)
    assert "token_weights='idf', skip_tokens=True, first_stage=0.25" in repr(model)
    assert "token weights" in model._repr_html_() and "token weights" not in reranker()._repr_html_()
    assert "first_stage" not in repr(reranker())


def test_a_model_of_an_older_version_loads_with_what_it_did(tmp_path: Path) -> None:
    reranker().save(tmp_path / "model")
    file = tmp_path / "model" / "pt_meta.json"
    meta = json.loads(file.read_text("utf-8"))
    file.write_text(meta_text({name: value for name, value in meta.items() if name not in OPTIONS}), "utf-8")
    loaded = GraphMaxSim.load(tmp_path / "model", graph=GRAPH, verbose=False)
    assert loaded._options() == {}


def test_other_graphs_are_counted_anew() -> None:
    model = reranker(token_weights="idf", weights={})
    before = model(run())["score"]
    other = MemoryGraph.from_documents([*documents(), *(StructuredDocument(f"e{n}", (Node("section", "", -1),
        Node("passage", "mu mu", 0))) for n in range(50))])  # fmt: skip
    model.graph = other
    assert np.abs(model(run())["score"] - before).max() > 1e-3


def test_fit_measures_what_is_ranked_by() -> None:
    """With the whole share for the first stage, no weight of a relation can be better."""
    qrels = run()[["qid", "docno"]].assign(label=lambda frame: (frame["docno"] == "d2%p0").astype(int))
    start = {"structural": 0.2}
    assert reranker(weights=start, first_stage=1.0).fit(run(), qrels).weights == start
    fitted = reranker(weights=start, token_weights="idf", first_stage=0.1).fit(run(), qrels)
    assert set(fitted.weights) == set(start)
