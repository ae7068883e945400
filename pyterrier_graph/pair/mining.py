r"""Training examples for a dual-encoder: mined by any retriever, denoised by a cross-encoder.

With a teacher's probability :math:`s(q, p)` of each candidate p, its thresholds, and R(q), the judged passages,

.. math::

    P(q) &= R(q) \text{, or } \{p : s(q, p) > s_{pos}\} \text{ for pseudo-labels}

    N(q) &= \text{the first } n \text{ of } \{p : s(q, p) < s_{neg}\}

Y. Qu et al.: RocketQA. NAACL 2021, Sect. 4.2. R. Ren et al.: PAIR. Findings of ACL 2021, Sect. 3.3.
"""

import os
from dataclasses import KW_ONLY, asdict, dataclass
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
    frame_sha256,
    json_sha256,
    pipeline_identity,
    workspace,
)
from pyterrier_graph.storage.shards import ShardWriter
from pyterrier_graph.training.validation import checked_qrels, checked_topics

QUERY = "query"
PAIR_COLUMNS = ["qid", QUERY, "docno", "text"]  # that the teacher reads
# sources of documents
RELEVANT = "relevant"
TOP = "top"
DRAWN = "drawn"
EXAMPLES = "examples"  # the array of a shard


def example_columns(negatives: int) -> list[str]:
    """The columns of training examples: ``query, positive, negative_1, ..., negative_n``."""
    names = [f"negative_{number}" for number in range(1, negatives + 1)]
    return [QUERY, "positive", *names]


def example_schema(negatives: int) -> pa.Schema:
    """The columns of mined examples: texts, then ids."""
    texts = example_columns(negatives)
    docnos = [f"{name}_docno" for name in texts[1:]]
    names = [*texts, "qid", *docnos]
    return pa.schema([(name, pa.string()) for name in names])


def example_ids(examples: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The qid of each mined example, and the docnos of its positive and negatives, shape (examples, 1 + n)."""
    names = [name for name in examples.column_names if name.endswith("_docno")]
    columns = [np.array(examples[name]) for name in names]
    qids = np.array(examples["qid"])
    return qids, np.column_stack(columns)


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
        published = {"hard_negatives": 4, "depth": 50}
        return cls(**published | options)


@dataclass(eq=False)
class HardNegativeMiner:
    """Makes training examples from topics and any retriever.

    ::

        miner = ptg.HardNegativeMiner(bm25 % 200, pt.text.get_text(dataset), teacher=cross_encoder, folder="mined")
        examples = miner.labeled(dataset.get_topics(), dataset.get_qrels())
        more = miner.pseudo_labeled(pt.io.read_topics("more.txt", "singleline", tokenise=False))

    Examples are a ``datasets.Dataset`` in memory: texts in ``query, positive, negative_1, ..., negative_n``, and ids in
    ``qid, positive_docno, negative_1_docno, ..., negative_n_docno``. To keep them, call ``examples.save_to_disk``.

    **Candidates** are the ``depth`` best documents of each query. The teacher scores them: documents below
    ``negative_threshold`` are negatives, documents above ``positive_threshold`` get positive pseudo-labels, and the
    rest are ignored, as are documents without text, or with the text of one before.

    **Negatives** of a query are its ``hard_negatives`` best-ranked ones. All positives of the query share them.

    A teacher such as ``pyterrier_caching.ScorerCache("scores", cross_encoder)`` scores a pair once for several
    thresholds or retrievers.

    Args:
        candidates: Retriever: ``qid, query`` to ``qid, docno, score``. Where it retrieves passages and documents are
            judged, the passages of a relevant document that are among the ``depth`` best are relevant.
        texts: Adds ``text`` by ``docno``, such as ``pt.text.get_text(dataset)``, also to relevant documents that are
            not retrieved.
        teacher: ``qid, query, docno, text`` to ``score``, a probability, such as
            ``CrossEncoderReranker(..., probabilities=True)``. Without one, every document that is not relevant is a
            negative, and there are no pseudo-labels.
        config: Numbers and thresholds; :meth:`MiningConfig.paper` returns PAIR's.
        folder: Folder for unfinished work. After a kill, a call with the same options, topics, judgments and ``repr``
            of pipelines continues there.
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
            ValueError: If a query is empty, none is judged, or the teacher does not return probabilities.
        """
        topics = checked_topics(topics, "HardNegativeMiner")
        relevant = relevant_documents(qrels)
        topics = topics[topics["qid"].isin(relevant["qid"])]
        if not len(topics):
            raise ValueError("none of the topics has a relevant document (label > 0) in qrels")
        return self._mine(topics, relevant, pseudo=False)

    def pseudo_labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame | None = None) -> Dataset:
        """Examples whose positives are pseudo-labeled by the teacher, one row for each of them, as in :meth:`labeled`.

        A query without positives, or with too few negatives, is dropped. If there are judgments, relevant documents get
        no pseudo-label, and are not negatives either.
        """
        if self.teacher is None:
            raise ValueError(
                "pseudo-labels come from a teacher: give HardNegativeMiner(..., teacher=...)"
            )
        if qrels is None:
            qrels = pd.DataFrame(columns=["qid", "docno", "label"])
        topics = checked_topics(topics, "HardNegativeMiner")
        return self._mine(topics, relevant_documents(qrels), pseudo=True)

    def denoised(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> Dataset:
        """The examples of :meth:`labeled`, then the examples of :meth:`pseudo_labeled`."""
        labeled = self.labeled(topics, qrels)
        pseudo_labeled = self.pseudo_labeled(topics, qrels)
        return concatenate_datasets([labeled, pseudo_labeled])

    def _mine(self, topics: pd.DataFrame, relevant: pd.DataFrame, *, pseudo: bool) -> Dataset:
        """Examples of the topics; ``relevant`` has ``qid, docno``."""
        identity = asdict(self.config) | {
            "pseudo": pseudo,
            "candidates": pipeline_identity(self.candidates),
            "texts": pipeline_identity(self.texts),
            "teacher": pipeline_identity(self.teacher),
            "topics_sha256": frame_sha256(topics),
            "relevant_sha256": frame_sha256(relevant),
        }
        schema = example_schema(self.config.hard_negatives)

        def mined(rows: np.ndarray) -> dict[str, np.ndarray]:
            batch = topics.iloc[rows]
            judged = relevant[relevant["qid"].isin(batch["qid"])]
            documents = self._documents(batch, judged, pseudo)
            chosen = choose(documents, self.teacher, self.config, pseudo=pseudo)
            examples = example_frame(documents, chosen)
            serialized = pa.RecordBatch.from_pandas(examples, schema).serialize()
            return {EXAMPLES: np.frombuffer(serialized, np.uint8)}

        with TemporaryDirectory() as temporary:
            folder = Path(self.folder or temporary)
            digest = json_sha256(identity)[:16]
            with workspace(folder / f"examples-{digest}") as scratch:
                shards = ShardWriter(scratch, len(topics), self.batch_size, identity)
                shards.compute(
                    mined,
                    desc="HardNegativeMiner",
                    unit="query",
                    delay=1,
                    disable=not self.verbose,
                )
                batches = []
                for arrays in shards.read():
                    serialized = pa.py_buffer(arrays[EXAMPLES])
                    batches.append(pa.ipc.read_record_batch(serialized, schema))
        return Dataset(pa.Table.from_batches(batches, schema))

    def _documents(
        self, topics: pd.DataFrame, relevant: pd.DataFrame, pseudo: bool
    ) -> pd.DataFrame:
        """The documents of each topic with their texts: relevant ones, then candidates in their order."""
        run = self.candidates.transform(topics)
        run = run[["qid", "docno", "score"]].astype({"qid": str})
        run = run.sort_values("score", ascending=False, kind="stable")
        run = run.drop_duplicates(["qid", "docno"])
        is_top = run.groupby("qid").cumcount() < self.config.depth
        sources = [run[is_top].assign(source=TOP)]
        if not pseudo:
            drawn = self._drawn(run[~is_top])
            sources.append(drawn.assign(source=DRAWN))
        retrieved = pd.concat(sources)

        graph = getattr(self.texts, "graph", None)
        judged = judged_ids(retrieved["docno"], relevant, graph)
        pairs = pd.MultiIndex.from_arrays([retrieved["qid"], judged])
        relevant_pairs = pd.MultiIndex.from_frame(relevant)
        is_relevant = pairs.isin(relevant_pairs)
        of_documents = judged != retrieved["docno"]
        if of_documents.any():  # documents are judged, and passages retrieved
            is_top = retrieved["source"] == TOP
            relevant = retrieved[is_relevant & is_top]
        relevant = relevant.assign(source=RELEVANT)
        documents = pd.concat([relevant, retrieved[~is_relevant]])
        documents = topics.merge(documents, on="qid")
        return documents.assign(text=self._texts_of(documents))

    def _drawn(self, rest: pd.DataFrame) -> pd.DataFrame:
        """Documents drawn from the rest of each ranking, in the order of hashes: batches have no effect."""
        key = f"{self.config.seed:016d}"[-16:]
        ids = rest[["qid", "docno"]]
        hashes = pd.util.hash_pandas_object(ids, index=False, hash_key=key)
        order = hashes.to_numpy().argsort()
        shuffled = rest.iloc[order]
        return shuffled.groupby("qid").head(self.config.hard_negatives)

    def _texts_of(self, documents: pd.DataFrame) -> np.ndarray:
        """The text of each document; raises KeyError if there is none."""
        distinct = documents[["qid", "query", "docno"]].drop_duplicates("docno")
        loaded = self.texts.transform(distinct)
        loaded = check_frame(loaded, "texts", texts=("text",))
        text = loaded.drop_duplicates("docno").set_index("docno")["text"]
        texts = text.loc[documents["docno"]]
        return texts.to_numpy()


def relevant_documents(qrels: pd.DataFrame) -> pd.DataFrame:
    """The ``qid`` and ``docno`` of judgments above 0."""
    qrels = checked_qrels(qrels, "HardNegativeMiner")
    relevant = qrels[qrels["label"] > 0]
    return relevant[["qid", "docno"]].drop_duplicates()


def choose(
    documents: pd.DataFrame, teacher: pt.Transformer | None, config: MiningConfig, *, pseudo: bool
) -> np.ndarray:
    """Chooses positives and negatives of all queries.

    The documents are ordered by query: first the relevant ones, then candidates, best first. If ``pseudo``, positives
    are pseudo-labels.

    Returns:
        The positions of a positive and of its n negatives in each row, shape (examples, 1 + n).
    """
    n = config.hard_negatives
    qid = documents["qid"]
    positive, negative = labels_of(documents, teacher, config, pseudo=pseudo)
    rank = negative.groupby(qid).cumsum()  # among the negatives, from 1
    negative &= rank <= n  # N(q)
    has_positive = positive.groupby(qid).transform("any")
    negatives_of_query = negative.groupby(qid).transform("sum")
    has_negatives = negatives_of_query == n
    usable = has_positive & has_negatives
    queries = qid[usable].unique()
    positives = np.flatnonzero(positive & usable)  # (examples,)
    negatives = np.flatnonzero(negative & usable).reshape(len(queries), n)
    query = pd.Index(queries).get_indexer(qid.iloc[positives])  # (examples,)
    return np.column_stack([positives, negatives[query]])


def labels_of(
    documents: pd.DataFrame, teacher: pt.Transformer | None, config: MiningConfig, *, pseudo: bool
) -> tuple[pd.Series, pd.Series]:
    """Whether a document is a positive, and whether it is a negative of its query.

    A document without text, or with the text of one before, is neither.
    """
    text = documents["text"].str.split().str.join(" ")
    repeated = documents.assign(text=text).duplicated(["qid", "text"])  # relevant ones come first
    usable = ~repeated & (text != "")
    relevant = documents["source"] == RELEVANT
    positive = usable & relevant
    negative = usable & ~relevant
    if teacher is None:
        return positive, negative
    scores = pd.Series(np.nan, documents.index)
    scores[negative] = probabilities(teacher, documents[negative])
    if pseudo:
        positive = scores > config.positive_threshold
    negative = scores < config.negative_threshold
    return positive, negative


def probabilities(teacher: pt.Transformer, pairs: pd.DataFrame) -> np.ndarray:
    """The teacher's scores of pairs (``qid, query, docno, text``), shape (pairs,); each must be from 0 to 1."""
    pairs = pairs[PAIR_COLUMNS].reset_index(drop=True)
    scored = teacher.transform(pairs)[["qid", "docno", "score"]]
    scores = pairs.merge(scored, how="left", on=["qid", "docno"])["score"]
    is_probability = scores.between(0, 1)
    wrong = scores[~is_probability]
    if len(wrong):
        raise ValueError(
            f"the teacher returned the score {wrong.iloc[0]}, which is not a probability in [0, 1]: "
            "use CrossEncoderReranker(..., probabilities=True)"
        )
    return scores.to_numpy(dtype=float)


def example_frame(documents: pd.DataFrame, chosen: np.ndarray) -> pd.DataFrame:
    """Texts and ids of examples; ``chosen`` are the positions of their documents, shape (examples, 1 + n)."""
    positives = documents.iloc[chosen[:, 0]]
    examples = positives[[QUERY, "qid"]].reset_index(drop=True)
    negatives = chosen.shape[1] - 1
    _, *names = example_columns(negatives)
    for name, rows in zip(names, chosen.T, strict=True):
        passages = documents.iloc[rows]
        examples[name] = passages["text"].to_numpy()
        examples[f"{name}_docno"] = passages["docno"].to_numpy()
    return examples
