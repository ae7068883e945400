"""GNNEncoder: from vectors of passages to contextual indexes, and masked graph training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gnn_encoder_reference as reference
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from datasets import Dataset
from pyterrier_dr import FlexIndex
from safetensors.torch import load_file, save_file
from tiny import WORDS, checkpoint
from torch import Tensor, nn
from trainings import forks, in_two_processes

from pyterrier_graph.documents.document import Node, StructuredDocument
from pyterrier_graph.gnn_encoder.encoder import GNNEncoder
from pyterrier_graph.gnn_encoder.equations import PaperGNNEncoderConfig, PaperGNNEncoderNetwork
from pyterrier_graph.gnn_encoder.network import GNNEncoderConfig
from pyterrier_graph.gnn_encoder.training import (
    GNNEncoderTraining,
    MaskedGraph,
    MaskedGraphModel,
    MaskedPassages,
    loss_queries,
)
from pyterrier_graph.graph_mean import contextual_index
from pyterrier_graph.graph_mean.graph_mean import GraphMean
from pyterrier_graph.graph_mean.tuning import PassageValidation, relevant_passages
from pyterrier_graph.graphs.memory_graph import MemoryGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.pair.dual_encoder import DualEncoder
from pyterrier_graph.pair.mining import HardNegativeMiner, MiningConfig, example_ids

COUNT, FEATURES = 24, 6
QUICK: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 8,
    "masked": 0.2,
    "negatives": 2,
    "learning_rate": 0.01,
}
NETWORKS: dict[str, Any] = {
    "papers": PaperGNNEncoderConfig(heads=2),
    "edge features": PaperGNNEncoderConfig(heads=2, edge_features=FEATURES),
    "one layer": PaperGNNEncoderConfig(heads=1, layers=1, gate=0.3, shared_weights=True),
    "average": PaperGNNEncoderConfig(average=0.7),
    "queries": {"relevant": 0.5, "retrieved": 0.2},
    "relations": {"relevant": 0.5, "title": 0.4, "order": 0.3},
}


def words(number: int) -> str:
    return f"{WORDS[number % 12]} {WORDS[(number * 5 + number // 12) % 12]} {WORDS[(number * 7 + 3) % 12]}"


def document(number: int) -> StructuredDocument:
    title = WORDS[number % 12] if number else ""  # nothing is aggregated from an empty title
    nodes = (
        Node("section", title, -1),
        *(Node("passage", words(4 * number + n), 0) for n in range(4)),
    )
    return StructuredDocument(f"d{number}", nodes)


def features(queries: list[str], passages: list[str]) -> np.ndarray:
    lengths = [[len(query), len(passage)] for query, passage in zip(queries, passages, strict=True)]
    return np.sin(np.array(lengths)[:, :1] + np.outer(np.array(lengths)[:, 1], np.arange(FEATURES)))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 passages of 6 documents; two queries for each, those of the first 20 passages are in the graph."""
    folder = tmp_path_factory.mktemp("gnn")
    encoder = DualEncoder(
        checkpoint(), device="cpu", max_query_tokens=12, max_passage_tokens=24, verbose=False
    )
    documents = MemoryGraph([document(number) for number in range(6)])
    docnos = [str(name) for name in documents.ids_of(documents.passage_nodes)]
    texts = dict(zip(docnos, documents.texts(documents.passage_nodes, titles=True), strict=True))
    index = FlexIndex(str(folder / "base.flex"), verbose=False)
    (encoder.doc_encoder() >> index).index(
        {"docno": name, "text": text} for name, text in texts.items()
    )
    numbers = [n for n in range(2 * COUNT) if n % COUNT < 20] + [
        n for n in range(2 * COUNT) if n % COUNT >= 20
    ]
    rows = [
        (f"q{n}", " ".join(words(n % COUNT).split()[: 1 + n // COUNT]) + " mu" * (n % 3))
        for n in numbers
    ]
    topics = pd.DataFrame(rows, columns=["qid", "query"])
    relevant = {f"q{n}": docnos[n % COUNT] for n in numbers}
    qrels = pd.DataFrame({"qid": relevant.keys(), "docno": relevant.values(), "label": 1})
    train, dev = topics[:44], topics[44:]  # 40 in the graph and 4 that are not; 4
    retriever = encoder.query_encoder() >> index.np_retriever()
    load = pt.apply.generic(lambda frame: frame.assign(text=frame["docno"].map(texts)))
    graph = QueryPassageGraph(folder / "graph").build(
        topics[:40], index, retriever, k=5, qrels=qrels
    )
    graph.add_edge_features(features, load)
    vectors = torch.tensor(np.array(index.payload(return_docnos=False)[0]))
    return SimpleNamespace(**locals())


def gnn(small: Any, network: Any = None, **options: Any) -> GNNEncoder:
    training = GNNEncoderTraining(**QUICK | options.pop("training", {}))
    if network is None or isinstance(network, dict):
        network = GNNEncoderConfig(network)
    network = replace(network, edges=options.pop("edges", True), seed=options.pop("seed", 0))
    common = {
        "training": training,
        "device": "cpu",
        "query_graph": small.graph,
        "graph": small.documents,
        "folder": small.folder / "vectors",
        "encoder": small.encoder,
    }
    return GNNEncoder(**common | {"verbose": False, "config": network} | options)


def masked_graph(model: GNNEncoder, topics: pd.DataFrame, qrels: pd.DataFrame) -> MaskedGraph:
    queries = loss_queries(model, topics, qrels)
    kind = MaskedPassages if model.training.batches == "passages" else MaskedGraph
    return kind(queries, model.sampler(), model.training)


def mean(small: Any, weights: Any = None, **options: Any) -> GraphMean:
    common = {"query_graph": small.graph, "folder": small.folder / "vectors", "device": "cpu"}
    options = common | {"verbose": False} | options
    return GraphMean(small.documents, small.encoder, weights, **options)


def randomized(model: GNNEncoder) -> GNNEncoder:
    generator = torch.Generator().manual_seed(5)
    for parameter in model.network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def indexed(model: Any, folder: Path) -> np.ndarray:
    return np.array(model.index(folder).flex.payload(return_docnos=False)[0])


def edges_of(
    graph: QueryPassageGraph, edge_type: str, masked: set[int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Pairs of a query and a passage, and numbers of these edges."""
    numbers = np.arange(graph.num_edges[edge_type])
    pairs = [(int(q), int(p)) for q, p in zip(*graph._ends(numbers, edge_type), strict=True)]
    kept = [number for number in numbers.tolist() if pairs[number][0] not in masked]
    return [pairs[number] for number in kept], kept


def literal(small: Any, model: GNNEncoder, masked: set[int] = frozenset()) -> Tensor:  # type: ignore[assignment]
    """All passages, from the whole graph, by the equations one edge at a time."""
    network, passages, graph = model.network, small.vectors, small.graph
    queries = torch.tensor(small.encoder.encode_queries(graph.texts(np.arange(40))))
    if isinstance(network, PaperGNNEncoderNetwork):
        pairs, numbers = edges_of(graph, "retrieved", masked)
        about = None
        if network.config.edge_features:
            about = torch.tensor(graph.edge_features()[numbers].astype(np.float32))
        queries = reference.query_states(network, queries, passages, pairs, about)
        return reference.passage_states(
            network, passages, queries, [(p, q) for q, p in pairs], about
        )
    sources: dict[str, Tensor] = {}
    edges: dict[str, list[tuple[int, int]]] = {}
    for name in network.relations:
        if name in graph.edge_types:
            sources[name], edges[name] = (
                queries,
                [(p, q) for q, p in edges_of(graph, name, masked)[0]],
            )
        elif name == "title":
            sources[name] = torch.tensor(
                small.encoder.encode_docs([WORDS[number] for number in range(6)])
            )
            edges[name] = [(p, p // 4) for p in range(COUNT) if p // 4]
        else:
            row, node = small.documents.neighbors(small.documents.passage_nodes, name)
            places = {
                node: place for place, node in enumerate(small.documents.passage_nodes.tolist())
            }
            sources[name] = passages
            edges[name] = [(r, places[n]) for r, n in zip(row.tolist(), node.tolist(), strict=True)]
            assert edges[name]
    return own_network(model, passages, sources, edges)


def own_network(model: GNNEncoder, passages: Tensor, sources: Any, edges: Any) -> Tensor:
    """The weighted sum of the literal terms ``y, a_1, a_2, ...``, longer without a relevant query."""
    network: Any = model.network
    network.isolated = 0.0
    terms = reference.side_by_side_passage_states(network, passages, sources, edges)
    weights = torch.tensor([1.0, *network.weights.values()], dtype=passages.dtype)
    total = (terms.unflatten(1, (len(weights), -1)) * weights[:, None]).sum(1)
    isolated = [p not in {target for target, _ in edges["relevant"]} for p in range(len(total))]
    scale = 1 + model.sampler().isolated_share * network.weights["relevant"]
    return torch.where(torch.tensor(isolated)[:, None], scale * total, total)


# --- vectors and indexes


@pytest.mark.parametrize("name", NETWORKS)
def test_fusing_equals_the_equations_on_the_whole_graph(
    small: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contextual_index, "PASSAGES_AT_ONCE", 7)
    model = randomized(gnn(small, NETWORKS[name]))
    with torch.no_grad():
        expected = literal(small, model).numpy()
    if name in ("papers", "queries"):
        targets = {p for _, p in edges_of(small.graph, "retrieved", set())[0]}
        assert len(targets) < COUNT, "passages without edges must be among them"
    found = indexed(model, tmp_path / "index")
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(model.vectors_of(small.docnos), found, atol=1e-5)
    np.testing.assert_allclose(model.vectors_of(small.docnos[5:3:-1]), found[5:3:-1], atol=1e-5)
    assert not np.allclose(found, small.vectors, atol=1e-2)
    index = FlexIndex(str(tmp_path / "index"), verbose=False)
    results = (model.query_encoder() >> index.np_retriever(num_results=3))(small.topics[:2])
    scores = small.encoder.encode_queries(small.topics["query"][:2].tolist()) @ expected.T
    best = [small.docnos[p] for row in scores for p in np.argsort(-row)[:3]]
    assert results.sort_values(["qid", "rank"])["docno"].tolist() == best


def test_the_untrained_network_is_graph_mean(small: Any) -> None:
    """With default weights, given ones, and those that its grid search finds; saved and loaded."""
    start, model = mean(small), gnn(small)
    assert model.weights == start.weights == {"titles": 0.75, "relevant": 0.75}
    expected = start.vectors_of(small.docnos)
    np.testing.assert_array_equal(model.vectors_of(small.docnos), expected)
    third = {"relevant": 1 / 3, "retrieved": 0.0}
    expected = mean(small, third).vectors_of(small.docnos)
    np.testing.assert_array_equal(gnn(small, third).vectors_of(small.docnos), expected)


# --- masked graph training


def masked(
    small: Any,
    qrels: pd.DataFrame | None = None,
    topics: pd.DataFrame | None = None,
    graph: Any = None,
    **options: Any,
) -> MaskedGraph:
    network = {"relevant": 0.5, "retrieved": 0.1}
    model = gnn(small, network, query_graph=graph or small.graph, training=options)
    topics = small.train if topics is None else topics
    return masked_graph(model, topics, small.qrels if qrels is None else qrels)


def test_the_split_of_algorithm_1(small: Any) -> None:
    queries, same = masked(small), masked(small)
    everything, seen = np.arange(COUNT), []
    for epoch in range(3):
        queries.draw(epoch)
        same.draw(epoch)
        rows = [queries[n] for n in range(len(queries))]
        assert rows == [same[n] for n in range(len(same))]
        seen.append(rows)
        out = {row for row in rows if row < 40}  # rows of the topics, and numbers in the graph
        assert len(out) == 8 and {*rows} - out == {40, 41, 42, 43}
        for edge_type in ("retrieved", "relevant"):
            left = queries.query_graph.edges_of_passages(everything, edge_type)
            pairs, _ = edges_of(small.graph, edge_type, out)
            assert sorted(zip(left.indices, left.row_index, strict=True)) == sorted(pairs)
        around = queries.sampler.sample(everything, queries.query_graph)
        assert not out & {*around["query"].n_id.tolist()}
        np.testing.assert_array_equal(queries.positives, same.positives)
        for row in rows:
            relevant = small.docnos.index(small.relevant[small.train["qid"][row]])
            found = small.retriever(small.train[row : row + 1])["docno"][:5]
            negatives = queries.negatives[row]
            assert queries.positives[row] == relevant and relevant not in negatives
            assert {small.docnos[n] for n in negatives} <= {*found} and len(negatives) == 2
    assert len({tuple(rows) for rows in seen}) == 3
    assert masked(small, negatives=0).negatives[:3].shape == (3, 0)


def test_without_masking_the_edges_to_labeled_positives_are_dropped(small: Any) -> None:
    """001, Sect. 4.5: all queries are in the graph and give the loss; seen from both sides, of all types."""
    unmasked = masked(small, masked=None)
    assert sorted(unmasked[n] for n in range(len(unmasked))) == [*range(44)]
    for edge_type in ("retrieved", "relevant"):
        everything = edges_of(small.graph, edge_type, set())[0]
        expected = sorted(
            (q, p)
            for q, p in everything
            if small.docnos[p] != small.relevant[f"q{small.numbers[q]}"]
        )
        assert len(expected) < len(everything)
        left = unmasked.query_graph.edges_of_passages(np.arange(COUNT), edge_type)
        assert sorted(zip(left.indices, left.row_index, strict=True)) == expected
        left = unmasked.query_graph.edges_of_queries(np.arange(40), edge_type)
        assert sorted(zip(left.row_index, left.indices, strict=True)) == expected
    whole = small.graph.edges_of_passages(np.arange(COUNT)).indices
    assert len(whole) == 200 and unmasked.query_graph.fingerprint() != small.graph.fingerprint()


def test_queries_without_text_or_judgments(small: Any) -> None:
    with pytest.raises(ValueError, match="query 'q0' has no text"):
        gnn(small).fit(small.train.assign(query=[" ", *small.train["query"][1:]]), small.qrels)
    with pytest.raises(KeyError, match="nothing judged is in"):
        gnn(small).fit(small.train, small.qrels[:0])
    with pytest.raises(TypeError, match="NoneType"):
        gnn(small).fit(small.train, small.qrels, small.dev)


def test_answerable_positives_are_relevant_to_another_query(small: Any, tmp_path: Path) -> None:
    graph = QueryPassageGraph(tmp_path / "graph")
    inside = small.topics[:25]  # q0 to q19, and q24 to q28, whose passages are those of q0 to q4
    graph.build(inside, small.index, small.retriever, k=5, qrels=small.qrels)
    queries = masked(small, graph=graph, masked=0.99)
    rows = {small.train["qid"][queries[n]] for n in range(len(queries))}
    alone = {f"q{n}" for n in range(5, 20)}
    assert rows == {*small.train["qid"]} - alone
    assert len(masked(small, small.qrels[small.qrels["qid"] == "q10"], graph=graph)) == 1


def test_a_query_graph_without_retrieved_passages(small: Any, tmp_path: Path) -> None:
    """Its queries have one relevant passage each, and no other query has it: the shortest program has to run."""
    inside = small.topics[:20]
    graph = QueryPassageGraph(tmp_path / "graph").build(inside, small.index, qrels=small.qrels)
    model = gnn(small, graph=small.documents, query_graph=graph, training={"masked": 0.5})
    queries = masked_graph(model, inside, small.qrels)
    assert model.fit(inside, small.qrels, small.dev, small.qrels).training_log
    assert len(queries) == 10
    found = small.retriever(inside).groupby("qid")["docno"].agg(lambda docnos: {*docnos[:25]})
    for qid, negatives in zip(inside["qid"], queries.negatives, strict=True):
        assert {small.docnos[n] for n in negatives} <= found[qid] - {small.relevant[qid]}
    with pytest.raises(ValueError, match="no 'retrieved' edges: build it with a retriever"):
        gnn(small, NETWORKS["papers"], query_graph=graph)


def test_judgments_of_documents(small: Any) -> None:
    """The most similar passage of the document is the positive, and no other passage of it is a negative."""
    qrels = small.qrels.assign(docno=small.qrels["docno"].str.split("%").str[0])
    model = gnn(small, {"relevant": 0.5, "retrieved": 0.1}, graph=small.documents)
    queries = masked_graph(model, small.train, qrels)
    relevant, by_document = relevant_passages(queries.sampler, qrels)
    assert by_document and len(relevant) == 4 * len(qrels)
    relevant, by_document = relevant_passages(queries.sampler, small.qrels)
    assert not by_document and relevant.equals(small.qrels[["qid", "docno"]])
    for row, qid in enumerate(small.train["qid"]):
        first = small.docnos.index(small.relevant[qid]) // 4 * 4
        scores = small.vectors[first : first + 4] @ queries.queries.vectors[row]
        assert queries.positives[row] == first + int(scores.argmax())
        assert not {*queries.negatives[row]} & {*range(first, first + 4)}
    with pytest.raises(KeyError, match="are the judgments of another corpus"):
        model.fit(small.train, qrels.assign(label=0))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_of_a_batch(small: Any, name: str) -> None:
    model = randomized(gnn(small, NETWORKS[name]))
    queries = masked_graph(model, small.train, small.qrels)
    queries.draw(1)
    rows = [queries[n] for n in (0, 3, 7, 9, 10)]
    out = {queries[n] for n in range(8)}
    with torch.no_grad():
        states = literal(small, model, out)
    where = np.array(rows)
    passages = sorted(
        {*queries.positives[where].tolist()} | {*queries.negatives[where].ravel().tolist()} - {-1}
    )
    vectors = torch.tensor(small.encoder.encode_queries(small.train["query"][where].tolist()))
    if isinstance(NETWORKS[name], dict):
        vectors = 20 * nn.functional.normalize(vectors, dim=1)
    right = [passages.index(positive) for positive in queries.positives[where]]
    expected = reference.in_batch_loss(vectors.double(), states[passages].double(), right)
    if [*model.network.parameters()]:  # else there is nothing to train
        with torch.no_grad():
            loss = MaskedGraphModel(model.network)(**queries(rows))["loss"]
        assert loss.item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    # with an encoder that has not learned, the fresh vectors are the stored ones
    training = {"encoder_learning_rate": 1e-3}
    joint = gnn(small, NETWORKS[name], training=training)
    joint.network.load_state_dict(model.network.state_dict())
    queries = masked_graph(joint, small.train, small.qrels)
    queries.draw(1)
    with torch.no_grad():
        batch = queries(rows)
        loss = MaskedGraphModel(joint.network, encoder=small.encoder)(**batch)["loss"]
    assert loss.item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def mined(small: Any, **config: Any) -> Dataset:
    """Examples of the dual-encoder's candidates, with a teacher that takes every second one for relevant."""
    even = pt.apply.doc_score(lambda row: 0.95 if int(row["docno"][-1]) % 2 else 0.05)
    options = MiningConfig(**{"hard_negatives": 2, "depth": 8} | config)
    miner = HardNegativeMiner(
        small.retriever, small.load, teacher=even, config=options, verbose=False
    )
    return miner.denoised(small.train, small.qrels)


def test_denoised_positives_and_hard_negatives(small: Any) -> None:
    """001, Sect. 3.4: P_b are those of the miner; the graph is masked as always."""
    examples = mined(small)
    model = gnn(small, NETWORKS["papers"], training={"epochs": 1})
    queries = loss_queries(model, small.train, small.qrels, examples)
    batches = MaskedGraph(queries, model.sampler(), model.training)
    positives, negatives = {}, {}
    for qid, (positive, *hard) in zip(*example_ids(examples), strict=True):
        positives.setdefault(qid, set()).add(positive)
        negatives.setdefault(qid, set()).update(hard)
    assert any(len(docnos) > 1 for docnos in positives.values())  # pseudo-labels are among them
    for epoch in range(3):
        batches.draw(epoch)
        for row in (batches[n] for n in range(len(batches))):
            qid = small.train["qid"][row]
            assert small.docnos[batches.positives[row]] in positives[qid]
            assert {small.docnos[n] for n in batches.negatives[row]} <= negatives[qid]
    model.fit(small.train, small.qrels, small.dev, small.qrels, examples=examples)
    assert len(model.training_log) > 1


def test_batches_of_passages(small: Any) -> None:
    """Algorithm 1 of 000: random passages, and the loss of the masked queries whose positives are among them."""
    training = {"batches": "passages", "batch_size": 9, "negatives": 0, "scale": 1.0}
    model = randomized(gnn(small, NETWORKS["papers"], training=training))
    batches = masked_graph(model, small.train, small.qrels)
    assert isinstance(batches, MaskedPassages) and len(batches) == COUNT
    batches.draw(2)
    drawn = batches._rows.tolist()
    with torch.no_grad():
        states = literal(small, model, {row for row in drawn if row < 40})
        queries = torch.tensor(small.encoder.encode_queries(small.train["query"][drawn].tolist()))
        positives = [small.docnos.index(small.relevant[small.train["qid"][row]]) for row in drawn]
        for passages in (
            [23, 5, 0, 11, 7, 2],
            [23, 5, 5, 11, 0, 0],  # a repeated passage is no negative of its own query
            [*range(COUNT)],
            [p for p in range(COUNT) if p not in positives][:3],
        ):
            batch = batches(passages)
            found = MaskedGraphModel(model.network)(**batch)["loss"]
            expected = reference.preprint_loss(
                [*queries.double()], [*{*passages}], states.double(), positives
            )
            assert found.item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert not len(batch["queries"]) and not expected  # no query has its positive there
    before = tiny.weights(model.network)
    assert tiny.learned(model.fit(small.train, small.qrels).network, before)


def measured(model: Any, topics: pd.DataFrame, qrels: pd.DataFrame) -> float:
    return float(PassageValidation(model, topics, qrels, "nDCG@10")().mean())


def test_training(small: Any) -> None:
    training = {"epochs": 3, "learning_rate": 0.02}
    model, same, other = (
        gnn(small, NETWORKS["relations"], training=training | {"seed": n}) for n in (0, 0, 1)
    )
    queries = masked_graph(model, small.train, small.qrels)
    batch = queries([queries[n] for n in range(len(queries))])
    before = MaskedGraphModel(model.network)(**batch)["loss"].item()
    assert model.fit(small.train, small.qrels) is model and not model.network.training
    assert MaskedGraphModel(model.network)(**batch)["loss"].item() < before - 0.05
    trained = tiny.weights(model.network)
    assert not tiny.learned(same.fit(small.train, small.qrels).network, trained)
    assert tiny.learned(other.fit(small.train, small.qrels).network, trained)


def test_the_encoder_learns_too(small: Any, tmp_path: Path) -> None:
    training = {"encoder_learning_rate": 0.001, "epochs": 1, "patience": None}
    frozen = tiny.weights(small.encoder.network)
    untrained = measured(gnn(small, NETWORKS["queries"]), small.dev, small.qrels)
    model = gnn(small, NETWORKS["queries"], training=training)
    model.fit(small.train, small.qrels, small.dev, small.qrels)
    assert tiny.logged(model, "nDCG@10")[0] == pytest.approx(untrained)
    assert not tiny.learned(small.encoder.network, frozen)
    alone = PaperGNNEncoderConfig(average=0.0)  # "w/o GNN": no query is encoded
    model = gnn(small, alone, training=training, edges=False)
    assert model.fit(small.train, small.qrels).encoder.model_name != small.encoder.model_name
    with pytest.raises(ValueError, match="empty parameter list"):
        gnn(small, NETWORKS["average"]).fit(small.train, small.qrels)


@pytest.mark.parametrize("name", ["papers", "relations"])
def test_an_index_keeps_the_vectors_before_joint_training(
    small: Any, tmp_path: Path, name: str
) -> None:
    """001, Limitations: Eq. 6 has the cached passages of the initial dual-encoder, in training and in the index."""
    training = {"encoder_learning_rate": 0.01, "epochs": 2}
    model = gnn(small, NETWORKS[name], training=training)
    model.fit(small.train, small.qrels)
    fresh = torch.tensor(model.encoder.encode_docs([*small.texts.values()]))
    queries = torch.tensor(model.encoder.encode_queries(small.graph.texts(np.arange(40))))
    assert not torch.allclose(fresh, small.vectors, atol=1e-2)
    network: Any = model.network
    with torch.no_grad():
        if name == "papers":
            pairs, _ = edges_of(small.graph, "retrieved", set())
            states = reference.query_states(network, queries, small.vectors, pairs)  # cached
            expected = reference.passage_states(network, fresh, states, [(p, q) for q, p in pairs])
        else:  # so do the neighbors in the documents, which training does not encode again
            relevant = [(p, q) for q, p in edges_of(small.graph, "relevant", set())[0]]
            titles = small.encoder.encode_docs([WORDS[number] for number in range(6)])
            titled = [(p, p // 4) for p in range(COUNT) if p // 4]
            row, node = small.documents.neighbors(small.documents.passage_nodes, "order")
            order = [
                (r, [*small.documents.passage_nodes].index(n))
                for r, n in zip(row, node, strict=True)
            ]
            expected = own_network(
                model,
                fresh,
                {"relevant": queries, "title": torch.tensor(titles), "order": small.vectors},
                {"relevant": relevant, "title": titled, "order": order},
            )
    found = indexed(model, tmp_path / "index")
    np.testing.assert_allclose(found, expected, atol=2e-4)
    model.save(tmp_path / "model")
    there = {"graph": small.documents, "query_graph": small.graph, "device": "cpu"}
    loaded = GNNEncoder.load(tmp_path / "model", **there, verbose=False)
    np.testing.assert_allclose(loaded.vectors_of(small.docnos), found, atol=1e-5)


# --- frames, artifacts, copies


def test_a_network_is_used_elsewhere(small: Any, tmp_path: Path) -> None:
    """On another graph, by a copy or when it is loaded, as a network that was made there."""
    model = gnn(small, NETWORKS["relations"]).fit(small.train, small.qrels)
    graph = MemoryGraph([document(number) for number in (7, 9, 8)])
    docnos = graph.ids_of(graph.passage_nodes)
    queries = QueryPassageGraph(tmp_path / "queries")
    qrels = pd.DataFrame({"qid": ["a", "b"], "docno": docnos[:2], "label": 1})
    queries.build(pd.DataFrame({"qid": ["a", "b"], "query": WORDS[:2]}), graph, qrels=qrels)
    there: dict[str, Any] = {"graph": graph, "query_graph": queries, "folder": tmp_path / "vectors"}
    made = gnn(small, NETWORKS["relations"], **there)
    untrained = made.vectors_of(docnos)
    made.network.load_state_dict(model.network.state_dict())
    expected, before = made.vectors_of(docnos), model.vectors_of(small.docnos)
    assert np.abs(expected - untrained).max() > 1e-3
    model.save(tmp_path / "model")
    options: dict[str, Any] = {"device": "cpu", "verbose": False, "encoder": small.encoder}
    for other in (
        model.apply_attributes(**there),
        GNNEncoder.load(tmp_path / "model", **there, **options),
    ):
        np.testing.assert_allclose(other.vectors_of(docnos), expected, atol=1e-6)
    np.testing.assert_array_equal(model.vectors_of(small.docnos), before)


def test_another_network_has_other_neighborhoods(small: Any) -> None:
    model, other = (gnn(small, NETWORKS[name]) for name in ("one layer", "edge features"))
    before = model.vectors_of(small.docnos)
    model.network = other.network
    found = model.vectors_of(small.docnos)
    np.testing.assert_array_equal(found, other.vectors_of(small.docnos))
    assert not np.allclose(found, before, atol=1e-3)


def test_what_does_not_fit(small: Any, tmp_path: Path) -> None:
    relevant = {"network": {"relevant": 1.0}}
    for options, message in [
        (relevant | {"query_graph": None}, "is a relation of queries: give query_graph="),
        ({"network": {"above": 1.0}}, "has no relation 'above'"),
    ]:
        with pytest.raises(ValueError, match=message):
            gnn(small, **options)
    other = QueryPassageGraph(tmp_path / "queries")
    other.build(small.topics[:1], small.docnos[::-1], qrels=small.qrels)
    for options, message in [
        ({"query_graph": other}, "was built for other passages, or in another order"),
        ({"graph": None}, "needs graph="),
    ]:
        with pytest.raises(ValueError, match=message):
            gnn(small, **relevant | options).vectors_of(small.docnos[:1])
    with pytest.raises(ValueError, match="(?s)masked.*less than 1"):
        GNNEncoderTraining(masked=1.0)


# --- several processes

SHARED: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 2,
    "masked": 0.2,
    "negatives": 1,
    "learning_rate": 0.01,
}
STATE: dict[str, Any] = {}


def train_as(rank: int, folder: Path) -> None:
    small = STATE["small"]
    training = SHARED | {"output_dir": str(folder / "run")}
    model = gnn(small, NETWORKS["queries"], training=training, folder=folder / "vectors")
    model.fit(small.train, small.qrels, small.dev, small.qrels)
    save_file(tiny.weights(model.network), folder / f"{rank}.safetensors")


@forks
@pytest.mark.slow
def test_two_processes_end_with_the_same_weights(small: Any, tmp_path: Path) -> None:
    STATE["small"] = small
    in_two_processes(train_as, tmp_path)
    one, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert len([*(tmp_path / "vectors").iterdir()]) == 2  # passages and queries
