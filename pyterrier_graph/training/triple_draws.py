"""The triples <q, p+, p-> that an HGAT learns from: drawn from a run and its judgments."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyterrier_graph.checks import check_type
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.graphs import HeteroGraph
from pyterrier_graph.training.negatives import NegativeSampler
from pyterrier_graph.training.validation import PASSAGE_NUMBER, judged_ids

if TYPE_CHECKING:
    from pyterrier_graph.training.options import HGATTraining


def draw_triples(
    run: pd.DataFrame, qrels: pd.DataFrame, graph: HeteroGraph | None, options: HGATTraining
) -> tuple[list[str], list[HeteroGraph], np.ndarray]:
    """Draws triples as the options say.

    Args:
        run: ``qid, query, docno``, and ``graph`` where there is no document graph; ``codes`` where queries have some.
        qrels: ``qid, docno, label``; ids are text, as in the run. Where no passage is judged, the judgments of
            documents count for all their passages.
        graph: The document graph, or None.
        options: How to train.

    Returns:
        The texts of the queries, the graphs, and the triples: position of the graph, position of the query, node of p+,
        node of p-; shape (triples, 4).

    Raises:
        ValueError: If there is nothing to learn from, or the strategy needs a document graph.
    """
    texts = query_texts(run)
    qrels = qrels[qrels["qid"].isin(texts.index)]
    if graph is not None:
        sources = [(graph, passage_judgments(qrels, graph), run)]
    elif options.negatives == "candidates":
        sources = list(_learnable(run, qrels))
    else:
        raise ValueError(
            "without a document graph, negatives can only come from each query's own passages: "
            "use HGATTraining(negatives='candidates')"
        )
    if not sources:
        raise ValueError("no training query has both a relevant passage among its own and one that is judged lower")
    codes = run.drop_duplicates("qid").set_index("qid")["codes"].to_dict() if "codes" in run.columns else None
    drawn = []
    for number, (source, labels, candidates) in enumerate(sources):
        given = candidates if options.negatives == "candidates" else None
        sampler = NegativeSampler(
            source, labels, options.negatives, candidates=given, codes=codes, seed=options.seed + number
        )
        query = texts.index.get_indexer(sampler.qids)
        for _ in range(options.repeats):
            new = sampler.sample()
            drawn.append(np.column_stack([np.full(len(new), number), query[new[:, 0]], new[:, 1:]]))
    triples = np.concatenate(drawn)
    if options.max_triples is not None and options.max_triples < len(triples):
        triples = np.random.default_rng(options.seed).choice(triples, options.max_triples, replace=False)
    return texts.tolist(), [source for source, *_ in sources], triples


def passage_judgments(qrels: pd.DataFrame, graph: HeteroGraph) -> pd.DataFrame:
    """Judgments of passages, as given or, where no passage is judged, from those of their documents.

    Raises:
        KeyError: If no judged document is in the graph.

    Warns:
        UserWarning: If some judged documents are not in the graph.
    """
    if not len(qrels) or qrels["docno"].str.contains(PASSAGE_NUMBER).any():
        return qrels
    documents = graph._documents(qrels["docno"].tolist())
    if (documents < 0).all():
        graph.document_of(qrels["docno"].tolist())
    if (documents < 0).any():
        missing = qrels["docno"][documents < 0]
        warnings.warn(
            f"{len(missing)} of {len(qrels)} judged documents are not in the graph, such as {missing.iloc[0]!r}: "
            "their judgments are not used",
            stacklevel=2,
        )
    qrels = qrels[documents >= 0]
    position, nodes = graph.passages_of_documents(documents[documents >= 0])
    return qrels.iloc[position].assign(docno=graph.ids_of(nodes))


def graph_of(rows: pd.DataFrame) -> HeteroGraph:
    """The graph of a query's rows.

    Raises:
        TypeError: If there is none.
    """
    graph = rows["graph"].iloc[0]
    check_type(
        f"the graph of query {rows['qid'].iloc[0]!r}", graph, HeteroGraph, "a graph: put CandidateGraph() before"
    )
    return graph


def _learnable(run: pd.DataFrame, qrels: pd.DataFrame) -> Iterator[tuple[HeteroGraph, pd.DataFrame, pd.DataFrame]]:
    """Graph, judgments and passages of each query whose own passages are not all equally relevant."""
    labels = qrels.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["label"]
    pairs = pd.MultiIndex.from_arrays([run["qid"], judged_ids(run["docno"], qrels)])
    run = run.assign(label=labels.reindex(pairs, fill_value=0).to_numpy())
    for rows in run.groupby("qid", sort=False).indices.values():
        passages = run.iloc[rows].drop_duplicates("docno")
        if passages["label"].max() > max(passages["label"].min(), 0):
            yield graph_of(passages), passages, passages
