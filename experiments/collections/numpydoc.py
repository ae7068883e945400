"""The docstrings of installed packages, with the queries that come with them: no download is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pyterrier as pt

from experiments.harness.collection import SPLITS, Collection, Queries, Record, fraction, joined

DATASET = "irds:pyterrier-graph/numpydoc"


def read_numpydoc(size: str = "all") -> Collection:
    """Docstrings as structured documents; summary lines are the queries.

    Args:
        size: ``'numpy'``, or ``'all'`` for five packages.
    """
    return Collection(
        f"numpydoc/{size}",
        lambda: pt.get_dataset(f"{DATASET}/{size}").get_corpus_iter(verbose=False),
        {split: _queries(f"{DATASET}/{size}/{split}") for split in SPLITS},
        structured=True,
    )


def read_see_also(size: str = "all") -> Collection:
    """Docstrings as running text, and objects as what is searched.

    The summary lines of all objects are training queries. The descriptions that other objects' "See Also" lists give
    are the other queries: half of them, divided by object, are ``extra`` training queries, which no graph has; the
    other halves are for validation and for the test.

    Args:
        size: See :func:`read_numpydoc`.
    """

    def documents() -> Iterator[Record]:
        for record in pt.get_dataset(f"{DATASET}/{size}").get_corpus_iter(verbose=False):
            yield {name: record[name] for name in ("docno", "title", "text")}

    def of_documents(queries: Queries) -> Queries:
        qrels = queries.qrels.assign(
            docno=queries.qrels["docno"].str.replace(r"%p\d+$", "", regex=True), label=1
        )
        return Queries(
            queries.topics, qrels.drop_duplicates(["qid", "docno"]).reset_index(drop=True)
        )

    def halves(split: str) -> tuple[Queries, Queries]:
        others = of_documents(_queries(f"{DATASET}/{size}/see-also/{split}"))
        first = others.qrels.groupby("qid")["docno"].min()
        half = others.among(qid for qid in first.index if fraction(first[qid], "loss") < 0.5)
        return half, others.without(half)

    (some, dev), (more, test) = halves("dev"), halves("test")
    train = joined(of_documents(_queries(f"{DATASET}/{size}/{split}")) for split in SPLITS)
    queries = {"train": train, "extra": joined([some, more]), "dev": dev, "test": test}
    return Collection(f"numpydoc/{size}", documents, queries)


def _queries(dataset: str) -> Queries:
    part = pt.get_dataset(dataset)
    return Queries(part.get_topics(), part.get_qrels())
