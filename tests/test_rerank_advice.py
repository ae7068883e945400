"""Rerankers over a graph: wrong arguments are errors at once, bad results come with a warning that says what to do."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny

from pyterrier_graph.encoders.token_encoder import TokenEncoder
from pyterrier_graph.encoders.token_store import TokenStore
from pyterrier_graph.models.hgat import HGATConfig
from pyterrier_graph.rerank.document_evidence import DocumentEvidence
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.training.options import HGATTraining
from pyterrier_graph.training.triples import draw_triples
from pyterrier_graph.training.validation import Validation
from pyterrier_graph.warning_categories import SpeedWarning

RUN, QRELS = tiny.run(), tiny.qrels()
# All passages of a word's document count: passage judgments, and the documents' that mean the same.
PASSAGES = QRELS.assign(label=1)
DOCUMENTS = PASSAGES.assign(docno=PASSAGES["docno"].str.partition("%")[0]).drop_duplicates()


def graph_maxsim(graph: Any = "tiny", **options: Any) -> GraphMaxSim:
    given = {"encoder": tiny.encoder(), "verbose": False} | options
    return GraphMaxSim(tiny.graph() if graph == "tiny" else graph, **given)


def hgat(graph: Any = "tiny", **options: Any) -> HGATReranker:
    given = {"encoder": tiny.encoder(), "config": HGATConfig(heads=2, registers=4), "verbose": False} | options
    given["training"] = HGATTraining(**{"batch_size": 8} | given.pop("training", {}))
    return HGATReranker(tiny.graph() if graph == "tiny" else graph, **given)


every_reranker = pytest.mark.parametrize("make", [graph_maxsim, hgat])


def fresh_encoder(**options: Any) -> TokenEncoder:
    return TokenEncoder(tiny.checkpoint(), max_passage_tokens=24, max_query_tokens=12, device="cpu", **options)


# --- arguments


@every_reranker
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"graph": "corpus.graph"}, r"graph must be a DocumentGraph: ptg.DocumentGraph\(path\).* got 'corpus.graph'"),
        ({"encoder": 7}, "encoder must be the name or folder of a checkpoint.* got 7"),
        ({"tokens": "tokens"}, "tokens must be a TokenStore.* got 'tokens'"),
    ],
)
def test_arguments_of_another_type(make: Callable[..., Any], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(**wrong)


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(TypeError, match="graph must be a DocumentGraph"):
        GraphMaxSim("all-MiniLM-L6-v2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be an HGATConfig"):
        hgat(config={"layers": 2})
    with pytest.raises(TypeError, match="training must be a HGATTraining"):
        HGATReranker(tiny.graph(), tiny.encoder(), config=HGATConfig(heads=2), training={"epochs": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be a whole number, 1 or more, got 0"):
        hgat(batch_size=0)
    with pytest.raises(ValueError, match="dtype must be one of"):
        graph_maxsim(dtype="half")
    with pytest.raises(TypeError, match="weights must be a weight per relation"):
        graph_maxsim(weights=[1.0])
    with pytest.raises(ValueError, match="weight of 'order' must be 0 or more"):
        graph_maxsim(weights={"order": -0.1})
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        DocumentEvidence(-1)
    with pytest.raises(ValueError, match="finite number"):
        DocumentEvidence("1")  # type: ignore[arg-type]


def test_weights_that_are_set_later_are_checked() -> None:
    reranker = graph_maxsim()
    with pytest.raises(ValueError, match="weight of 'order' must be 0 or more"):
        reranker.set_parameter("weights", {"order": -1})
    with pytest.raises(ValueError, match="no relation 'cites'"):
        reranker.set_parameter("weights", {"cites": 1})
    with pytest.raises(ValueError, match="no relation 'cites'"):
        reranker.apply_attributes(weights={"cites": 1})
    reranker.set_parameter("weights", {"order": 1})
    assert reranker.weights == {"order": 1.0}


def test_signatures_are_those_of_the_constructors() -> None:
    for kind, first in ((GraphMaxSim, "graph"), (HGATReranker, "graph"), (DocumentEvidence, "weight")):
        parameters = inspect.signature(kind).parameters
        assert next(iter(parameters)) == first and "args" not in parameters
    assert inspect.signature(HGATReranker).parameters["encoder"].default == "all-MiniLM-L6-v2"


# --- defaults


def test_defaults_of_hgat_are_maxsim_until_it_is_trained() -> None:
    untrained = hgat()
    assert untrained.relations == HGATConfig().relations
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        scored = untrained(RUN)
    np.testing.assert_allclose(scored["score"], graph_maxsim(weights={})(RUN)["score"], atol=1e-4)


def test_relations_given_go_before_those_of_the_config() -> None:
    config = HGATConfig(heads=2, registers=0, relations=("order",))
    assert hgat(config=config).relations == ("order",)
    assert hgat(config=config, relations="title").relations == ("title",)
    assert "title" not in hgat(config=HGATConfig.paper(heads=2)).relations
    assert hgat(None, config=HGATConfig.paper(heads=2)).relations == hgat(config=HGATConfig.paper(heads=2)).relations


def test_a_random_start_ranks_at_random_until_it_is_trained() -> None:
    options = {"config": HGATConfig(heads=2, registers=0, init="random"), "training": {"epochs": 1}}
    random = hgat(**options)
    with pytest.warns(UserWarning, match="not trained and ranks at random"):
        random(RUN)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "not trained")
        random(RUN)  # said once
        hgat(**options).fit(RUN, QRELS, RUN, QRELS)(RUN)


# --- judgments of documents


def test_training_by_judgments_of_documents_is_that_of_their_passages() -> None:
    drawn = [draw_triples(RUN, qrels, tiny.graph(), HGATTraining())[2] for qrels in (PASSAGES, DOCUMENTS)]
    np.testing.assert_array_equal(*drawn)
    fitted = [hgat(training={"epochs": 1}).fit(RUN, qrels)(RUN)["score"] for qrels in (PASSAGES, DOCUMENTS)]
    np.testing.assert_array_equal(*fitted)


def test_judged_documents_that_are_not_in_the_graph() -> None:
    unknown = pd.DataFrame([{"qid": "t0", "docno": "d99", "label": 1}])
    with pytest.warns(UserWarning, match="1 of 7 judged documents are not in the graph, such as 'd99'"):
        triples = draw_triples(RUN, pd.concat([DOCUMENTS, unknown]), tiny.graph(), HGATTraining())[2]
    np.testing.assert_array_equal(triples, draw_triples(RUN, DOCUMENTS, tiny.graph(), HGATTraining())[2])
    with pytest.raises(KeyError, match="d99"):
        draw_triples(RUN, unknown, tiny.graph(), HGATTraining())


def test_validation_by_judgments_of_documents() -> None:
    reranker = hgat(training={"epochs": 2}).fit(RUN, DOCUMENTS, RUN, DOCUMENTS)
    measured = [entry["nDCG@10"] for entry in reranker.training_log if "nDCG@10" in entry]
    assert max(measured) == pytest.approx(Validation(RUN, DOCUMENTS, "nDCG@10", reranker)(reranker(RUN)["score"]))
    assert max(measured) > 0
    start = {"title/title": 0.0, "order_i": 0.0}
    tuned = graph_maxsim(weights=start).fit(RUN, DOCUMENTS)
    evidence = DocumentEvidence(0.0).fit(tuned(RUN), DOCUMENTS)
    for model, scored in ((tuned, tuned(RUN)), (evidence, evidence(tuned(RUN)))):
        assert Validation(RUN, DOCUMENTS, "nDCG@10", model)(scored["score"]) > 0


@pytest.mark.parametrize("make", [graph_maxsim, hgat, lambda: DocumentEvidence()])
def test_judgments_of_other_documents_are_named(make: Callable[..., Any]) -> None:
    other = QRELS.assign(docno=QRELS["docno"].str.replace("d", "other"))
    with pytest.warns(UserWarning, match="none of the candidates is judged, so nDCG@10 is 0.*'other0%p0'"):
        make().fit(RUN, QRELS, RUN, other)


# --- options of training


def test_an_encoder_whose_layers_are_all_frozen() -> None:
    training = {"encoder_learning_rate": 1e-5, "frozen_encoder_layers": 2}
    with pytest.raises(ValueError, match="has 2 layers, and frozen_encoder_layers=2 freezes all.*with less than 2"):
        hgat(training=training).fit(RUN, QRELS)


def test_an_encoder_that_learns_is_a_copy(tmp_path: Path) -> None:
    encoder = fresh_encoder()
    store = TokenStore(tmp_path / "tokens").build(tiny.graph(), encoder, titles=True, verbose=False)
    before = encoder.fingerprint()
    other = graph_maxsim(encoder=encoder, tokens=store)
    scored = other(RUN)["score"]
    reranker = hgat(encoder=encoder, tokens=store, training={"encoder_learning_rate": 1e-3, "epochs": 1})
    with pytest.warns(UserWarning, match="trains a copy of the encoder. The vectors in TokenStore"):
        reranker.fit(RUN, QRELS)
    assert encoder.fingerprint() == before != reranker.encoder.fingerprint()
    assert reranker.tokens is None and reranker.titles  # the texts that it learned from
    np.testing.assert_array_equal(other(RUN)["score"], scored)


def test_the_publication_s_training() -> None:
    options = HGATTraining.paper(epochs=3)
    assert (options.learning_rate, options.encoder_learning_rate, options.frozen_encoder_layers) == (1e-3, 3e-6, 6)
    assert (options.negatives, options.repeats, options.max_triples, options.epochs) == ("mixed", 1000, None, 3)


# --- titles and speed


@every_reranker
def test_titles_in_the_run_that_are_not_read(make: Callable[..., Any], tmp_path: Path) -> None:
    graph = tiny.graph()
    nodes = graph.nodes_of(RUN["docno"].tolist())
    bare, titled = (RUN.assign(text=graph.texts(nodes, titles=titles)) for titles in (False, True))
    reranker = make()
    with pytest.warns(UserWarning, match=f"{type(reranker).__name__} encodes the passages of the graph without"):
        reranker(titled)
    store = TokenStore(tmp_path / "titled").build(graph, tiny.encoder(), titles=True, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        reranker(titled)  # said once
        make()(bare)
        stored = make(tokens=store)(titled)
        read = make(titles=True)(titled)
    np.testing.assert_allclose(read["score"], stored["score"], atol=0.02)
    assert np.abs(read["score"] - make()(bare)["score"]).max() > 0.05
    bare_store = TokenStore(tmp_path / "bare").build(graph, tiny.encoder(), verbose=False)
    with pytest.raises(ValueError, match="titles=True, but TokenStore.* was built without"):
        make(tokens=bare_store, titles=True)


def test_slow_scoring_is_named(tmp_path: Path) -> None:
    frame = tiny.run(18)
    reranker = hgat(tiny.graph(18))
    with pytest.warns(UserWarning, match=r"54 passages.* reranker.contextualized = reranker.contextualize\(path\)"):
        slow = reranker(frame)
    reranker.contextualized = reranker.contextualize(tmp_path / "in_context")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpeedWarning)
        np.testing.assert_allclose(reranker(frame)["score"], slow["score"], atol=0.02)
        hgat()(RUN)  # few passages
        fitted = hgat(tiny.graph(18), training={"epochs": 1, "max_triples": 8})
        fitted.fit(frame, tiny.qrels(18), frame, tiny.qrels(18))  # where nothing can be stored before


@every_reranker
def test_half_precision(make: Callable[..., Any], tmp_path: Path) -> None:
    whole = make(encoder=fresh_encoder())(RUN)["score"]
    reranker = make(encoder=fresh_encoder(dtype="bfloat16"), dtype="bfloat16")
    half = reranker(RUN)["score"]
    assert 0 < np.abs(half - whole).max() < 0.2
    if isinstance(reranker, HGATReranker):
        reranker.contextualized = reranker.contextualize(tmp_path / "in_context")
        np.testing.assert_allclose(reranker(RUN)["score"], half, atol=0.1)


# --- artifacts and copies


def test_graph_maxsim_is_saved(tmp_path: Path) -> None:
    reranker = graph_maxsim(weights={"title": 0.3, "order/order": 0.7}, titles=True, measure="RR")
    reranker.save(tmp_path / "saved")
    loaded = GraphMaxSim.load(tmp_path / "saved", graph=tiny.graph(), device="cpu", verbose=False)
    assert (loaded.weights, loaded.titles, loaded.measure) == (reranker.weights, True, "RR")
    np.testing.assert_array_equal(loaded(RUN)["score"], reranker(RUN)["score"])
    again = GraphMaxSim.load(tmp_path / "saved", graph=tiny.graph(), encoder=tiny.encoder())
    assert again.encoder is tiny.encoder()
    with pytest.raises(ValueError, match="was saved with .* has other weights or lengths"):
        GraphMaxSim.load(tmp_path / "saved", encoder=tiny.encoder().reduced([" ".join(tiny.WORDS)], 4))
    with pytest.raises(ValueError, match="'format': 'graph_maxsim'.* is needed"):
        HGATReranker.load(tmp_path / "saved")
    with pytest.raises(FileExistsError, match="exists already"):
        reranker.save(tmp_path / "saved")


def test_a_trained_model_goes_on_and_copies_keep_its_weights(tmp_path: Path) -> None:
    reranker = hgat(training={"epochs": 1, "scalar_learning_rate": 0.2}).fit(RUN, QRELS)
    copy = pt.inspect.transformer_apply_attributes(reranker, batch_size=3, graph=tiny.graph())
    np.testing.assert_allclose(copy(RUN)["score"], reranker(RUN)["score"], atol=1e-5)
    with pytest.warns(UserWarning, match="the copy of .* is not trained: with another seed"):
        reranker.apply_attributes(seed=1)
    with pytest.warns(UserWarning, match="is trained already: fit continues"):
        reranker.fit(RUN, QRELS)
    loaded = HGATReranker.load(reranker.save(tmp_path / "saved").path, graph=tiny.graph(), device="cpu")
    assert loaded.training == reranker.training and loaded.relations == reranker.relations
    np.testing.assert_allclose(loaded(RUN)["score"], reranker(RUN)["score"], atol=1e-5)
    with pytest.raises(ValueError, match="vectors of 15 nodes|other texts|holds vectors"):
        store = TokenStore(tmp_path / "small").build(tiny.graph(3), tiny.encoder(), verbose=False)
        reranker.apply_attributes(tokens=store)
