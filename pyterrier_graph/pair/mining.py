r"""Training examples for a dual-encoder: mined by any retriever, denoised by a cross-encoder.

With a teacher's probability :math:`s(q, p)` of each candidate p, its thresholds, and R(q), the judged passages,

.. math::

    P(q) &= R(q) \text{, or } \{p : s(q, p) > s_{pos}\} \text{ for pseudo-labels}

    N(q) &= \text{the first } n \text{ of } \{p : s(q, p) < s_{neg}\}

Y. Qu et al.: RocketQA. NAACL 2021, Sect. 4.2. R. Ren et al.: PAIR. Findings of ACL 2021, Sect. 3.3.
"""

import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pyterrier as pt
from datasets import Dataset, concatenate_datasets
from pydantic import NonNegativeInt, PositiveInt

from pyterrier_graph.checks import check_frame
from pyterrier_graph.configuration import STRICT, Share
from pyterrier_graph.graphs.judgments import judged_ids
from pyterrier_graph.storage.artifact import (
    file_sha256,
    frame_sha256,
    json_sha256,
    pipeline_identity,
    workspace,
)
from pyterrier_graph.storage.shards import ShardWriter
from pyterrier_graph.training.validation import checked_qrels, checked_topics

QUERY = "query"
PAIR_COLUMNS = ["qid", QUERY, "docno", "text"]  # that the teacher reads
RELEVANT, TOP, DRAWN = "relevant", "top", "drawn"  # sources of documents
DOCUMENT_COLUMNS = ["qid", QUERY, "docno", "source"]  # indexed by the number of the query


def example_columns(negatives: int) -> list[str]:
    """The columns of training examples: ``query, positive, negative_1, ..., negative_n``."""
    return [QUERY, "positive", *(f"negative_{number + 1}" for number in range(negatives))]


def example_ids(examples: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The qid of each mined example, and the docnos of its positive and negatives, shape (examples, 1 + n)."""
    docnos = [np.array(examples[name]) for name in examples.column_names if name.endswith("_docno")]
    return np.array(examples["qid"]), np.column_stack(docnos)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class MiningConfig:
    """Options of mining.

    Attributes:
        hard_negatives: n, the number per row; 0 leaves the texts of the other rows of a batch as negatives.
        depth: Number of best documents per query that are candidates.
        positive_threshold: s_pos.
        negative_threshold: s_neg.
        seed: Seed of random draws.
    """

    hard_negatives: NonNegativeInt = 1
    depth: PositiveInt = 50
    positive_threshold: Share = 0.9
    negative_threshold: Share = 0.1
    seed: NonNegativeInt = 0

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """PAIR's options: four negatives, thresholds 0.9 and 0.1, and the 50 best candidates (the authors' code)."""
        return cls(**{"hard_negatives": 4, "depth": 50, **options})


@dataclass(eq=False)
class HardNegativeMiner:
    """Makes training examples from topics and any retriever.

    ::

        miner = ptg.HardNegativeMiner(bm25 % 200, pt.text.get_text(dataset), teacher=cross_encoder, folder="mined")
        examples = miner.labeled(dataset.get_topics(), dataset.get_qrels())
        more = miner.pseudo_labeled(pt.io.read_topics("more.txt", "singleline", tokenise=False))

    Examples are a memory-mapped ``datasets.Dataset``: texts in ``query, positive, negative_1, ..., negative_n``, and
    ids in ``qid, positive_docno, negative_1_docno, ..., negative_n_docno``.

    **Candidates** are the ``depth`` best documents of each query. The teacher scores them: documents below
    ``negative_threshold`` are negatives, those above ``positive_threshold`` get positive pseudo-labels, and all others
    are ignored, as are documents without text, or with the text of one before.

    **Negatives** of a query are its ``hard_negatives`` best-ranked ones. All positives of the query share them.

    After a kill, a call with the same options, topics, judgments and ``repr`` of pipelines continues. A teacher such as
    ``pyterrier_caching.ScorerCache("scores", cross_encoder)`` scores a pair once for several thresholds or retrievers.

    Args:
        candidates: Retriever: ``qid, query`` to ``qid, docno, score``. Where it retrieves passages and documents are
            judged, the passages of a relevant document that are among the ``depth`` best are relevant.
        texts: Adds ``text`` by ``docno``, such as ``pt.text.get_text(dataset)``, also to relevant documents that are
            not retrieved.
        teacher: ``qid, query, docno, text`` to ``score``, a probability, such as
            ``CrossEncoderReranker(..., probabilities=True)``. Without one, every document that is not relevant is a
            negative, and there are no pseudo-labels.
        config: Numbers and thresholds; :meth:`MiningConfig.paper` returns those of PAIR.
        folder: Folder for examples. By default a temporary one, which this process deletes at its end.
        batch_size: Number of queries at once.
        verbose: Whether to show progress.
    """

    candidates: pt.Transformer
    texts: pt.Transformer
    _: KW_ONLY
    teacher: pt.Transformer | None = None
    config: MiningConfig = MiningConfig()
    folder: str | os.PathLike[str] | None = None
    batch_size: int = 64
    verbose: bool = True

    def labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Dataset:
        """Examples whose positives are judged relevant, one row for each of them, whatever its score.

        The teacher denoises the negatives only, as in RocketQA, and no relevant document is a negative of its query. If
        too few of the ``depth`` best documents are negatives, up to ``hard_negatives`` documents are drawn at random
        from the rest of the ranking and take the remaining places if the teacher scores them as negatives (the authors'
        code does not score them). A query that still has too few negatives is dropped.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``; a document with a label above 0 is relevant.

        Raises:
            KeyError: If ``texts`` does not return a document.
            ValueError: If a query is empty, none is judged, or a pipeline does not return what it should.
        """
        return self._mine(topics, qrels, pseudo=False)

    def pseudo_labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame | None = None) -> Dataset:
        """Examples whose positives are pseudo-labeled by the teacher, one row for each of them, as in :meth:`labeled`.

        A query without positives, or with too few negatives, is dropped. If there are judgments, relevant documents get
        no pseudo-label, and are not negatives either.
        """
        if self.teacher is None:
            raise ValueError(
                "pseudo-labels come from a teacher: give HardNegativeMiner(..., teacher=...)"
            )
        return self._mine(topics, qrels, pseudo=True)

    def denoised(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Dataset:
        """The examples of :meth:`labeled`, then the examples of :meth:`pseudo_labeled`."""
        return concatenate_datasets(
            [self.labeled(topics, qrels), self.pseudo_labeled(topics, qrels)]
        )

    def _mine(self, topics: pd.DataFrame, qrels: pd.DataFrame | None, *, pseudo: bool) -> Dataset:
        topics = checked_topics(topics, "HardNegativeMiner")
        relevant = relevant_documents(topics, qrels)
        if not pseudo:
            if not len(relevant):
                raise ValueError("none of the topics has a relevant document (label > 0) in qrels")
            topics = topics.loc[relevant.index.unique()]
        kind = "pseudo-labeled" if pseudo else "labeled"
        folder = Path(_temporary_folder().name if self.folder is None else self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        identity = self._identity(topics, relevant) | {"kind": kind}

        def mined(numbers: np.ndarray) -> dict[str, np.ndarray]:
            batch = topics.iloc[numbers]
            judged = relevant.loc[batch.index[0] : batch.index[-1]]
            documents = self._documents(batch, judged, pseudo)
            places = choose(documents, batch.index, self.teacher, self.config, pseudo=pseudo)
            return {"examples": _to_bytes(examples_table(documents, places))}

        progress: dict[str, Any] = {"desc": "HardNegativeMiner", "unit": "query", "delay": 1}
        with workspace(folder / f"{kind}-{json_sha256(identity)[:16]}") as scratch:
            shards = ShardWriter(scratch, len(topics), self.batch_size, identity)
            shards.compute(mined, disable=not self.verbose, **progress)
            stream = scratch / "examples.arrow"
            write_stream(stream, (_from_bytes(arrays["examples"]) for arrays in shards.read()))
            # named by its content, so that a file in use is never overwritten
            path = folder / f"{kind}-{file_sha256(stream)[:16]}.arrow"
            if not path.exists():
                stream.rename(path)
        return Dataset.from_file(str(path))

    def _identity(self, topics: pd.DataFrame, relevant: pd.DataFrame) -> dict[str, Any]:
        """Everything that the examples depend on."""
        return asdict(self.config) | {
            "batch_size": self.batch_size,
            "candidates": pipeline_identity(self.candidates),
            "texts": pipeline_identity(self.texts),
            "teacher": pipeline_identity(self.teacher),
            "topics_sha256": frame_sha256(topics),
            "relevant_sha256": frame_sha256(relevant),
        }

    def _documents(
        self, topics: pd.DataFrame, relevant: pd.DataFrame, pseudo: bool
    ) -> pd.DataFrame:
        """The documents of each query with their texts: relevant ones, then candidates in their order."""
        documents = relevant
        if pseudo or self.config.hard_negatives:
            retrieved = self._retrieved(topics, drawing=not pseudo)
            relevant, retrieved = self._resolved(relevant, retrieved)
            documents = pd.concat([relevant, retrieved]).sort_index(kind="stable")
        return documents.assign(text=self._texts_of(documents))

    def _resolved(
        self, relevant: pd.DataFrame, retrieved: pd.DataFrame
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Relevant and other documents. If documents are judged and passages retrieved, both are passages."""
        judged = judged_ids(retrieved["docno"], relevant, getattr(self.texts, "graph", None))
        if not len(relevant) or (judged == retrieved["docno"]).all():
            return relevant, retrieved
        pairs = pd.MultiIndex.from_arrays([retrieved["qid"], judged])
        is_relevant = pairs.isin(pd.MultiIndex.from_frame(relevant[["qid", "docno"]]))
        top = is_relevant & (retrieved["source"] == TOP)
        return retrieved[top].assign(source=RELEVANT), retrieved[~is_relevant]

    def _retrieved(self, topics: pd.DataFrame, drawing: bool) -> pd.DataFrame:
        """The first documents of each ranking, then documents drawn from its rest."""
        run = frame_from(self.candidates, topics, ["qid", "docno", "score"], "candidates")
        run = run[["qid", "docno", "score"]].astype({"qid": str})
        run = check_frame(run, "candidates", numbers=("score",))
        run = run.sort_values("score", ascending=False, kind="stable")
        run = run.drop_duplicates(["qid", "docno"])
        numbered = topics[["qid", "query"]].reset_index(names="number")
        run = numbered.merge(run, on="qid").set_index("number")
        top = run.groupby(level=0).cumcount() < self.config.depth
        documents = run[top].assign(source=TOP)
        if drawing:
            drawn = self._drawn(run[~top]).assign(source=DRAWN)
            documents = pd.concat([documents, drawn])
        return documents[DOCUMENT_COLUMNS]

    def _drawn(self, rest: pd.DataFrame) -> pd.DataFrame:
        """Documents drawn from the rest of each ranking, in the order of hashes: batches have no effect."""
        key = f"{self.config.seed:016d}"[-16:]
        hashes = pd.util.hash_pandas_object(rest[["qid", "docno"]], index=False, hash_key=key)
        order = hashes.to_numpy().argsort()
        return rest.iloc[order].groupby(level=0).head(self.config.hard_negatives)

    def _texts_of(self, documents: pd.DataFrame) -> pd.Series:
        """The text of each document; raises KeyError if there is none."""
        pairs = documents[["qid", "query", "docno"]].drop_duplicates("docno")
        if not len(pairs):
            return pd.Series(dtype=object)
        loaded = frame_from(self.texts, pairs, ["docno", "text"], "texts")
        loaded = check_frame(loaded, "texts", texts=("text",)).drop_duplicates("docno")
        texts = loaded.set_index("docno")["text"].reindex(documents["docno"])
        if (unknown := texts.isna()).any():
            raise KeyError(
                f"texts does not know document {texts.index[unknown][0]!r} of candidates or qrels"
            )
        return texts.set_axis(documents.index)


@lru_cache(maxsize=1)
def _temporary_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="mined-", ignore_cleanup_errors=True)


def _to_bytes(table: pa.Table) -> np.ndarray:
    """A table as an array for a shard: the bytes of Arrow's stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def _from_bytes(stored: np.ndarray) -> pa.Table:
    return pa.ipc.open_stream(stored.tobytes()).read_all()


def write_stream(path: Path, tables: Iterator[pa.Table]) -> None:
    """Writes tables to a file that ``Dataset.from_file`` maps."""
    first = next(tables)
    with pa.ipc.new_stream(str(path), first.schema) as out:
        for table in chain([first], tables):
            out.write_table(table)


def relevant_documents(topics: pd.DataFrame, qrels: pd.DataFrame | None) -> pd.DataFrame:
    """The relevant documents of the topics, by the number of their query."""
    if qrels is None:
        qrels = pd.DataFrame(columns=["qid", "docno", "label"])
    qrels = checked_qrels(qrels, "HardNegativeMiner")
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    numbered = topics[["qid", "query"]].reset_index(names="number")
    relevant = relevant.merge(numbered, on="qid").set_index("number").sort_index(kind="stable")
    return relevant.assign(source=RELEVANT)[DOCUMENT_COLUMNS]


def frame_from(
    stage: pt.Transformer, inp: pd.DataFrame, columns: list[str], name: Any
) -> pd.DataFrame:
    """The result of a pipeline, which must have these columns."""
    frame = stage(inp)
    pt.validate.columns(frame, includes=columns, context=name)
    return frame


def probabilities(teacher: pt.Transformer, pairs: pd.DataFrame) -> np.ndarray:
    """The teacher's scores of pairs (``qid, query, docno, text``), shape (pairs,); each must be from 0 to 1."""
    inp = pairs[PAIR_COLUMNS].reset_index(drop=True)
    scored = frame_from(teacher, inp, ["qid", "docno", "score"], "teacher")
    scored = scored[["qid", "docno", "score"]].drop_duplicates(["qid", "docno"])
    scores = inp[["qid", "docno"]].merge(scored, how="left", on=["qid", "docno"])["score"]
    wrong = ~scores.between(0, 1)
    if wrong.any():
        pair = inp[wrong].iloc[0]
        raise ValueError(
            f"the teacher scores query {pair['query']!r}, document {pair['docno']!r} as {scores[wrong].iloc[0]}, "
            "which is not a probability in [0, 1]: use CrossEncoderReranker(..., probabilities=True)"
        )
    return scores.to_numpy(dtype=float)


def choose(
    documents: pd.DataFrame,
    queries: pd.Index,
    teacher: pt.Transformer | None,
    config: MiningConfig,
    *,
    pseudo: bool,
) -> np.ndarray:
    """Chooses positives and negatives of all queries.

    The documents are indexed by query: first the relevant ones, then candidates, best first. If ``pseudo``, positives
    are pseudo-labels.

    Returns:
        The positions of a positive and of its n negatives in each row, shape (examples, 1 + n).
    """
    n = config.hard_negatives
    query = queries.get_indexer(documents.index)  # (documents,)
    positive, negative = labels_of(documents, teacher, config, pseudo=pseudo)  # (documents,)
    negative &= (pd.Series(negative).groupby(query).cumsum() <= n).to_numpy()  # N(q)
    # queries with a positive and n negatives, (queries,)
    usable = np.bincount(query[positive], minlength=len(queries)) > 0
    usable &= np.bincount(query[negative], minlength=len(queries)) == n
    used = usable[query]
    positives = np.flatnonzero(positive & used)  # (examples,)
    negatives = np.flatnonzero(negative & used).reshape(usable.sum(), n)  # (usable queries, n)
    row = np.cumsum(usable) - 1  # of each usable query in ``negatives``
    row_of_positive = row[query[positives]]  # (examples,)
    return np.column_stack([positives, negatives[row_of_positive]])


def examples_table(documents: pd.DataFrame, places: np.ndarray) -> pa.Table:
    """Texts and ids of examples, given the positions of their documents, shape (examples, 1 + n)."""
    positives = documents.iloc[places[:, 0]]
    texts = {QUERY: positives[QUERY]}
    ids = {"qid": positives["qid"]}
    for name, place in zip(example_columns(places.shape[1] - 1)[1:], places.T, strict=True):
        column = documents.iloc[place]
        texts[name] = column["text"]
        ids[f"{name}_docno"] = column["docno"]
    return pa.table({name: pa.array(values, pa.string()) for name, values in (texts | ids).items()})


def labels_of(
    documents: pd.DataFrame, teacher: pt.Transformer | None, config: MiningConfig, *, pseudo: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Whether a document is a positive, and whether it is a negative of its query, both of shape (documents,).

    A document without text, or with the text of one before, is neither.
    """
    judged = (documents["source"] == RELEVANT).to_numpy()
    text = documents["text"].str.split().str.join(" ")
    repeated = documents.assign(text=text).duplicated(["qid", "text"])  # relevant ones come first
    usable = (~repeated & (text != "")).to_numpy()
    positive = usable & judged
    negative = usable & ~judged
    if teacher is None or not negative.any():
        return positive & (not pseudo), negative
    scores = np.full(len(documents), np.nan)
    scores[negative] = probabilities(teacher, documents[negative])
    if pseudo:
        positive = scores > config.positive_threshold
    return positive, scores < config.negative_threshold
