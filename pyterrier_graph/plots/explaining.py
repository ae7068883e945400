"""Explains the score of a passage: of a reranker, a retriever, or a hybrid of pipelines."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.documents import split_passage_id
from pyterrier_graph.folders.reasons import similarities
from pyterrier_graph.folders.snippets import check_question
from pyterrier_graph.graphs.hetero_graph import PASSAGE_TYPE, HeteroGraph
from pyterrier_graph.graphs.relations import QUERY_RELATIONS, follow
from pyterrier_graph.plots.explanation import SELF, Explanation, Part, Source
from pyterrier_graph.plots.style import shortened
from pyterrier_graph.plots.words import Spans, shared_words, similarity_words, token_spans, word_parts
from pyterrier_graph.rerank.base import FreshTokens
from pyterrier_graph.rerank.graph_maxsim import GraphMaxSim
from pyterrier_graph.rerank.hgat import HGATReranker
from pyterrier_graph.rerank.lgre import LGReReranker
from pyterrier_graph.retrieve.contextual_encoder import ContextualEncoder
from pyterrier_graph.retrieve.contextual_index import ContextualIndex
from pyterrier_graph.retrieve.contextual_retriever import ContextualRetriever
from pyterrier_graph.retrieve.hybrid import Hybrid
from pyterrier_graph.retrieve.score_parts import index_scores, query_vector, score_parts

WORDS = "What a word adds is by the encoder's own token vectors, scaled to each part."
NODES = 3  # of one relation, with parts of their own
MODELS = (GraphMaxSim, HGATReranker, ContextualEncoder, ContextualIndex, Hybrid)
EXPLAINED = "GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, or Hybrid"


def explain(pipeline: pt.Transformer, query: str, docno: str, *, graph: HeteroGraph | None = None) -> Explanation:
    """Shows why a passage has its score: its text, titles and neighbors, and what each of their words adds.

    ::

        ptg.explain(bm25 >> graph.passages() >> hgat, "how are ties broken", "numpy.argsort%p2")

    Args:
        pipeline: GraphMean, GNNEncoder, their index or its retriever, GraphMaxSim, HGATReranker, Hybrid, or a pipeline;
            of several in a pipeline, the last one is explained.
        query: The query.
        docno: A passage, or a document: its best passage is explained.
        graph: The graph of a reranker that has none, as behind ``CandidateGraph``.

    Returns:
        What a notebook shows, with ``frame``, ``score`` and ``html``; ``print`` shows it as text.

    Raises:
        KeyError: If the passage is not in the graph, or not among the results of a hybrid.
        ValueError: If nothing in the pipeline can be explained, or the query is empty.
    """
    check_question(query)
    model = explainable(pipeline)
    made = _explanation(model, query, docno, graph)
    made._again = lambda other: explain(model, other, docno, graph=graph)
    return made


def explainable(pipeline: Any) -> Any:
    """The last model of a pipeline that can be explained; ValueError if there is none."""
    parts = [*_parts(pipeline)]
    found = [part for part in parts if isinstance(part, MODELS)]
    if found:
        return found[-1]
    if any(isinstance(part, LGReReranker) for part in parts):
        advice = "LGReReranker reads texts without a graph: plots.word_graph(reranker.explain(query, text)) shows it"
        raise ValueError(f"{pipeline!r} cannot be explained here; {advice}")
    raise ValueError(f"{pipeline!r} cannot be explained: give {EXPLAINED}, or a pipeline with one of them")


def _parts(pipeline: Any) -> Iterator[Any]:
    """The transformers of a pipeline, in their order; a retriever is its index."""
    if isinstance(pipeline, ContextualRetriever):
        yield pipeline.index
    elif isinstance(pipeline, MODELS) or not isinstance(pipeline, pt.Transformer):
        yield pipeline
    else:
        yield pipeline
        for inner in pt.inspect.subtransformers(pipeline).values():
            for one in inner if isinstance(inner, list) else [inner]:
                yield from _parts(one)


def _explanation(model: Any, query: str, docno: str, graph: HeteroGraph | None) -> Explanation:
    if isinstance(model, Hybrid):
        return _hybrid(model, query, docno, graph)
    graph = graph if graph is not None else model.graph
    if graph is None:
        raise ValueError(f"{model!r} has no graph, which has the texts: explain(..., graph=graph)")
    passage, node = _passage(model, query, docno, graph)
    titles = graph.titles(node)[0]
    if isinstance(model, (GraphMaxSim, HGATReranker)):
        return Explanation(query, passage, repr_of(model), _token_parts(model, query, passage, graph), titles=titles)
    parts, notes = _dense_parts(model, query, passage, graph, node)
    return Explanation(query, passage, repr_of(model), parts, titles=titles, notes=notes)


def _passage(model: Any, query: str, docno: str, graph: HeteroGraph) -> tuple[str, np.ndarray]:
    """A passage and its node; of a document, the passage with the highest score."""
    node = graph.find([docno])
    if node[0] >= 0 and graph.node_type[node[0]] == PASSAGE_TYPE:
        return docno, node
    try:
        document = graph.document_of([docno])
    except KeyError as error:
        raise KeyError(f"{docno!r} is neither a passage nor a document of {graph!r}") from error
    _, nodes = graph.passages_of_documents(document)
    if not len(nodes):
        raise KeyError(f"the document {docno!r} has no passage")
    ids = graph.ids_of(nodes)
    best = int(_scores(model, query, ids, graph).argmax())
    return ids[best], nodes[best : best + 1]


def _scores(model: Any, query: str, docnos: list[str], graph: HeteroGraph) -> np.ndarray:
    if isinstance(model, ContextualEncoder):
        return model.vectors(docnos) @ query_vector(model, query)
    if isinstance(model, ContextualIndex):
        return index_scores(model, query, docnos)
    run = pd.DataFrame({"qid": "1", "query": query, "docno": docnos, "score": 0.0})
    if model.graph is None:
        run["graph"] = [graph] * len(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a few passages take long
        return model.transform(run).set_index("docno")["score"].reindex(docnos).to_numpy()


def _token_parts(model: Any, query: str, passage: str, graph: HeteroGraph) -> list[Part]:
    """A part per node, of the strongest nodes of each relation; one part for the rest."""
    frame = model.explain(query, passage, graph).rename(columns={"contribution": "score"})
    relations = [*model.weights] if isinstance(model, GraphMaxSim) else [*model.relations]
    target = graph.nodes_of([passage])
    relation_of = {passage: SELF}
    for name in reversed(relations):  # the first relation of a node counts
        relation_of |= dict.fromkeys(graph.ids_of(follow(graph, target, name)[1]), name) | {passage: SELF}
    relation_of = dict(zip(frame["node"], frame["relation"], strict=True)) | relation_of
    sums = frame.groupby("node")["score"].sum().reindex([*relation_of], fill_value=0.0)
    order = [passage, *sums.drop(passage).abs().sort_values(ascending=False, kind="stable").index]
    shown: list[str] = []
    rest: list[str] = []
    counts = dict.fromkeys(relation_of.values(), 0)
    for node in order:
        counts[relation_of[node]] += 1
        (shown if relation_of[node] and counts[relation_of[node]] <= NODES else rest).append(node)
    tokens = FreshTokens(graph, model.encoder, titles=model._with_titles)
    parts = []
    for node in shown:
        number = graph.nodes_of([node])
        text, ids = tokens.texts(number)[0], tokens.ids(number).indices.tolist()
        spans = token_spans(model.encoder.network.tokenizer, text, ids)
        own = frame[(frame["node"] == node) & (frame["position"] >= 0)]
        words = word_parts(text, [spans[at] for at in own["position"]], own["score"])
        parts.append(Part(relation_of[node], float(sums[node]), (Source(node, text, words),)))
    if rest:
        parts.append(Part("", float(sums[rest].sum()), name=f"{len(rest)} other nodes"))
    return parts


def _dense_parts(
    model: Any, query: str, passage: str, graph: HeteroGraph, node: np.ndarray
) -> tuple[list[Part], tuple[str, ...]]:
    """A part per relation, with all its sources."""
    notes = [WORDS]
    sources: dict[str, list[tuple[str, str]]] = {}
    if isinstance(model, ContextualEncoder):
        numbers = score_parts(model, query, passage)
        for row in model.explain(passage).itertuples():
            sources.setdefault(row.relation, []).append((str(row.qid), row.query))
    elif model._weights is not None:
        numbers = similarities([passage], query, model).rename(columns={"passage": SELF}).iloc[0].to_dict()
    else:
        numbers = {SELF: float(index_scores(model, query, [passage])[0])}
        notes.append("The vectors of this index are sums: to see their parts, explain the GraphMean or GNNEncoder.")
    for name in numbers.keys() - {SELF, *sources} - {*QUERY_RELATIONS}:
        nodes = follow(graph, node, name)[1]
        sources[name] = [*zip(graph.ids_of(nodes), graph.texts(nodes), strict=True)]
    sources[SELF] = [(passage, graph.texts(node)[0])]
    vector = np.asarray(model.encoder.encode_queries([query])[0], dtype=np.float32)
    parts = []
    for name, number in numbers.items():
        texts = sources.get(name, [])
        found = [similarity_words(model.encoder, text, vector) if text.strip() else [] for _, text in texts]
        if any(words is None for words in found):
            made = [Source(one, text, shared_words(text, query), numbers=False) for one, text in texts]
        else:
            scale = _scale([words or [] for words in found], number)
            made = [
                Source(one, text, [(start, end, part * scale) for start, end, part in words or []])
                for (one, text), words in zip(texts, found, strict=True)
            ]
        parts.append(Part(name, float(number), tuple(made)))
    return parts, tuple(notes)


def _scale(words: list[Spans], number: float) -> float:
    """Makes the words of a part add up to its number, as far as they can: punctuation has its share of the text."""
    total = sum(part for one in words for _, _, part in one)
    return number / total if total * number > 0 else 0.0


def _hybrid(model: Hybrid, query: str, docno: str, graph: HeteroGraph | None) -> Explanation:
    """A part per pipeline, and the explanation of each pipeline that has one."""
    table = model.explain(query).set_index("docno")
    names = {docno, split_passage_id(docno)[0]}
    found = [name for name in table.index if name in names]
    if not found:
        raise KeyError(f"{docno!r} is not among the {len(table)} results of {repr_of(model)} for {query!r}")
    row = table.loc[found[0]]
    parts, inner, notes = [], [], []
    for number, pipeline in enumerate(model.pipelines, 1):
        parts.append(Part(f"pipeline {number}", float(row[f"part_{number}"]), name=repr_of(pipeline)))
        try:
            inner.append(_explanation(explainable(pipeline), query, docno, graph))
        except (KeyError, ValueError):
            pass
    if inner:
        text = " ".join(source.text for part in inner[0].parts for source in part.sources)
        words = dict.fromkeys(text[start:end].casefold() for start, end, _ in shared_words(text, query))
        notes.append(f"Words of the query in the passage and its titles: {', '.join(words) or 'none'}.")
    notes.append("The scores of each pipeline are normalized for the query before they are added up.")
    return Explanation(query, found[0], "Hybrid", parts, notes=tuple(notes), inner=tuple(inner))


def repr_of(model: Any) -> str:
    """A short name of a model or pipeline: the names of its transformers."""
    if isinstance(model, ContextualRetriever):
        return repr_of(model.index)
    inner: Any = [] if isinstance(model, MODELS) else pt.inspect.subtransformers(model).get("transformers", [])
    return shortened(" >> ".join(map(repr_of, inner)) if inner else type(model).__name__, 80)
