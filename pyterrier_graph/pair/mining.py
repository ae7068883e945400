r"""Training examples for a dual-encoder: mined by any retriever, denoised by a cross-encoder.

With a teacher's probability :math:`s(q, p)` of each candidate p, its thresholds, and R(q), the judged passages,

.. math::

    P(q) &= R(q) \text{, or } \{p : s(q, p) > s_{pos}\} \text{ for pseudo-labels}

    N(q) &= \text{the first } n \text{ of } \{p : s(q, p) < s_{neg}\}

Y. Qu et al.: RocketQA. NAACL 2021, Sect. 4.2. R. Ren et al.: PAIR. Findings of ACL 2021, Sect. 3.3.
"""

import os
import tempfile
import warnings
from collections import Counter
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pyterrier as pt
from datasets import Dataset, concatenate_datasets
from pydantic import NonNegativeInt, PositiveInt

from pyterrier_graph.checks import DataWarning, check_frame
from pyterrier_graph.configuration import STRICT, Share
from pyterrier_graph.graphs.judgments import judged_ids
from pyterrier_graph.storage.artifact import (
    file_sha256,
    frame_sha256,
    json_sha256,
    pipeline_identity,
    sync,
    workspace,
)
from pyterrier_graph.storage.shards import ShardWriter, Workers, check_workers
from pyterrier_graph.training.validation import checked_qrels, checked_topics

QUERY = "query"
PAIR = ["qid", QUERY, "docno", "text"]
RELEVANT, TOP, DRAWN = "relevant", "top", "drawn"  # sources of documents
TOO_FEW, NOT_USED = "too few negatives", "not used"
DOCUMENT_COLUMNS = ["qid", "query", "docno", "source"]  # indexed by the position of the query


def example_columns(negatives: int) -> list[str]:
    """The columns of training examples: ``query, positive, negative_1, ..., negative_n``."""
    return [QUERY, "positive", *(f"negative_{number + 1}" for number in range(negatives))]


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

    def __post_init__(self) -> None:
        if self.negative_threshold >= self.positive_threshold:
            raise ValueError("negative_threshold must be below positive_threshold")

    @classmethod
    def paper(cls, **options: Any) -> Self:
        """PAIR's options: four negatives, thresholds 0.9 and 0.1, and the 50 best candidates (the authors' code)."""
        return cls(**{"hard_negatives": 4, "depth": 50, **options})


@dataclass(frozen=True)
class TrainingExamples:
    """Queries with a positive and hard negatives each, which a dual-encoder learns from.

    Attributes:
        dataset: Texts, memory-mapped: ``query, positive, negative_1, ..., negative_n``.
        ids: Ids of the same rows: ``qid, positive_docno, negative_1_docno, ..., negative_n_docno``.
        report: Numbers of queries, positives and candidates by outcome: ``count``, indexed by ``of`` and ``outcome``.
    """

    dataset: Dataset
    ids: Dataset
    report: pd.DataFrame
    folder: Any = field(default=None, repr=False)  # a temporary one is deleted with its last user

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass(eq=False)
class HardNegativeMiner:
    """Makes training examples from topics and any retriever.

    ::

        miner = ptg.HardNegativeMiner(bm25 % 200, pt.text.get_text(dataset), teacher=cross_encoder, folder="mined")
        examples = miner.labeled(dataset.get_topics(), dataset.get_qrels())
        more = miner.pseudo_labeled(pt.io.read_topics("more.txt", "singleline", tokenise=False))

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
        folder: Folder for examples. By default a temporary one, which exists as long as the miner or its examples.
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

    def __post_init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_temporary"}

    def labeled(
        self, topics: pd.DataFrame, qrels: pd.DataFrame, *, workers: Workers = 1
    ) -> TrainingExamples:
        """Examples whose positives are judged relevant, one row for each of them, whatever its score.

        The teacher denoises the negatives only, as in RocketQA, and no relevant document is a negative of its query. If
        too few of the ``depth`` best documents are negatives, up to ``hard_negatives`` documents are drawn at random
        from the rest of the ranking and take the remaining places if the teacher scores them as negatives (the authors'
        code does not score them). A query that still has too few negatives is dropped.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``; a document with a label above 0 is relevant.
            workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.storage.shards`.

        Raises:
            KeyError: If ``texts`` does not return a document.
            ValueError: If a query is empty, none is judged, a pipeline does not return what it should, or there is no
                example.
        """
        return self._mine(topics, qrels, workers, pseudo=False)

    def pseudo_labeled(
        self, topics: pd.DataFrame, qrels: pd.DataFrame | None = None, *, workers: Workers = 1
    ) -> TrainingExamples:
        """Examples whose positives are pseudo-labeled by the teacher, one row for each of them, as in :meth:`labeled`.

        A query without positives, or with too few negatives, is dropped. If there are judgments, relevant documents get
        no pseudo-label, and are not negatives either.
        """
        if self.teacher is None:
            raise ValueError(
                "pseudo-labels come from a teacher: give HardNegativeMiner(..., teacher=...)"
            )
        return self._mine(topics, qrels, workers, pseudo=True)

    def denoised(
        self, topics: pd.DataFrame, qrels: pd.DataFrame, *, workers: Workers = 1
    ) -> TrainingExamples:
        """The examples of :meth:`labeled`, and those of :meth:`pseudo_labeled` where there are any."""
        labeled = self.labeled(topics, qrels, workers=workers)
        try:
            pseudo = self.pseudo_labeled(topics, qrels, workers=workers)
        except ValueError as error:  # any other problem would have shown in labeled()
            message = f"labeled queries have no pseudo-labels: {error}"
            warnings.warn(message, DataWarning, stacklevel=2)
            return labeled
        return TrainingExamples(
            concatenate_datasets([labeled.dataset, pseudo.dataset]),
            concatenate_datasets([labeled.ids, pseudo.ids]),
            pd.concat({"labeled": labeled.report, "pseudo-labeled": pseudo.report}),
            self._temporary,
        )

    def _mine(
        self, topics: pd.DataFrame, qrels: pd.DataFrame | None, workers: Workers, *, pseudo: bool
    ) -> TrainingExamples:
        check_workers(workers)
        topics = checked_topics(topics, "HardNegativeMiner")
        relevant = relevant_documents(topics, qrels)
        outcomes: Counter[tuple[str, str]] = Counter({("queries", "kept"): 0})
        if not pseudo:
            if not len(relevant):
                raise ValueError("none of the topics has a relevant document (label > 0) in qrels")
            outcomes["queries", "no relevant document"] = len(topics) - relevant.index.nunique()
            topics = topics.loc[relevant.index.unique()]
        texts = example_columns(self.config.hard_negatives)
        ids = ["qid", *(f"{column}_docno" for column in texts[1:])]
        schema = pa.schema([(column, pa.string()) for column in [*texts, *ids]])
        folder = Path(self._temporary.name if self.folder is None else self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        kind = "pseudo-labeled" if pseudo else "labeled"
        identity = self._identity(topics, relevant) | {"kind": kind}

        def read(numbers: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
            some = topics.iloc[numbers]
            return some, relevant.loc[some.index[0] : some.index[-1]]

        def mined(given: tuple[pd.DataFrame, pd.DataFrame]) -> dict[str, np.ndarray]:
            return self._mined(*given, schema, pseudo=pseudo)

        progress: dict[str, Any] = {"desc": "HardNegativeMiner", "unit": "query", "delay": 1}
        with workspace(folder / f"{kind}-{json_sha256(identity)[:16]}") as place:
            shards = ShardWriter(place, len(topics), self.batch_size, identity)
            shards.compute(mined, read=read, workers=workers, disable=not self.verbose, **progress)
            stream = place / "examples.arrow"
            with pa.ipc.new_stream(str(stream), schema) as out:
                for arrays in shards.read():
                    out.write_table(_table_from_bytes(arrays["examples"]))
                    counts = _table_from_bytes(arrays["outcomes"]).to_pandas()
                    for of, outcome, count in counts.itertuples(index=False):
                        outcomes[of, outcome] += count
            report = (
                pd.DataFrame({"count": outcomes}).rename_axis(index=["of", "outcome"]).sort_index()
            )
            if not outcomes["positives", "kept"]:
                raise ValueError(f"there are no training examples:\n{report.to_string()}")
            # named by its content, so that a file in use is never overwritten
            path = folder / f"{kind}-{file_sha256(stream)[:16]}.arrow"
            if not path.exists():
                sync(stream)
                stream.rename(path)
                sync(folder)
        examples = Dataset.from_file(str(path))
        columns = examples.select_columns(texts), examples.select_columns(ids)
        return TrainingExamples(*columns, report, self._temporary)

    def _identity(self, topics: pd.DataFrame, relevant: pd.DataFrame) -> dict[str, Any]:
        """Everything that the examples depend on."""
        pipelines = {
            name: pipeline_identity(getattr(self, name))
            for name in ("candidates", "texts", "teacher")
        }
        identity = asdict(self.config) | pipelines | {"batch_size": self.batch_size}
        return identity | {
            "topics_sha256": frame_sha256(topics),
            "relevant_sha256": frame_sha256(relevant),
        }

    def _mined(
        self, topics: pd.DataFrame, relevant: pd.DataFrame, schema: pa.Schema, *, pseudo: bool
    ) -> dict[str, np.ndarray]:
        """The examples of some queries and the outcomes of their documents, as they are stored."""
        documents = self._documents(topics, relevant, pseudo)
        positives, negatives, outcomes = choose(
            documents, topics.index, self.teacher, self.config, pseudo=pseudo
        )
        qid, query, docno, text = (documents[name].to_numpy(dtype=object) for name in PAIR)
        chosen = [positives, *negatives.T]
        texts, ids = [text[at] for at in chosen], [docno[at] for at in chosen]
        rows = [(*names, count) for names, count in outcomes.items()]
        counts = pd.DataFrame(rows, columns=["of", "outcome", "count"])
        tables = {
            "examples": pa.table([query[positives], *texts, qid[positives], *ids], schema=schema),
            "outcomes": pa.Table.from_pandas(counts, preserve_index=False),
        }
        return {name: _table_to_bytes(table) for name, table in tables.items()}

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
        if not len(relevant) or judged.equals(retrieved["docno"]):
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


def _table_to_bytes(table: pa.Table) -> np.ndarray:
    """A table as an array for a shard: the bytes of Arrow's stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def _table_from_bytes(stored: np.ndarray) -> pa.Table:
    return pa.ipc.open_stream(stored.tobytes()).read_all()


def relevant_documents(topics: pd.DataFrame, qrels: pd.DataFrame | None) -> pd.DataFrame:
    """The relevant documents of the topics, by the number of their query."""
    if qrels is None:
        qrels = pd.DataFrame({"qid": [], "docno": [], "label": []})
    qrels = checked_qrels(qrels, "HardNegativeMiner")
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].drop_duplicates()
    relevant = relevant.merge(topics[["qid", "query"]].reset_index(names="number"), on="qid")
    return (
        relevant.set_index("number")
        .sort_index(kind="stable")
        .assign(source=RELEVANT)[DOCUMENT_COLUMNS]
    )


def frame_from(
    stage: pt.Transformer, inp: pd.DataFrame, columns: list[str], name: str
) -> pd.DataFrame:
    """The result of a pipeline; raises ValueError if it lacks one of these columns."""
    frame = cast(pd.DataFrame, stage(inp))
    if missing := [column for column in columns if column not in frame.columns]:
        problem = f"{', '.join(missing)} is missing from {', '.join(frame.columns)}"
        raise ValueError(f"{name} should return {', '.join(columns)}, but {problem}")
    return frame


def probabilities(teacher: pt.Transformer, pairs: pd.DataFrame) -> np.ndarray:
    """The teacher's scores of pairs (``qid, query, docno, text``), shape (pairs,); each must be from 0 to 1."""
    scored = frame_from(
        teacher, pairs[PAIR].reset_index(drop=True), ["qid", "docno", "score"], "the teacher"
    )
    by_pair = scored.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["score"]
    scores = by_pair.reindex(pd.MultiIndex.from_frame(pairs[["qid", "docno"]])).to_numpy(
        dtype=float
    )
    wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
    if len(wrong):
        pair = pairs.iloc[wrong[0]]
        raise ValueError(
            f"the teacher scores query {pair['query']!r}, document {pair['docno']!r} as {scores[wrong[0]]}, which "
            "is not a probability in [0, 1]: use CrossEncoderReranker(..., probabilities=True), or put the sigmoid "
            "of the score after it: pt.apply.doc_score(lambda row: 1 / (1 + math.exp(-row['score'])))"
        )
    return scores


def choose(
    documents: pd.DataFrame,
    queries: pd.Index,
    teacher: pt.Transformer | None,
    config: MiningConfig,
    *,
    pseudo: bool,
) -> tuple[np.ndarray, np.ndarray, Counter[tuple[str, str]]]:
    """Chooses positives and negatives of all queries, and counts the outcomes of documents.

    The documents are indexed by query: first the relevant ones, then candidates, best first. If ``pseudo``, positives
    are pseudo-labels.

    Returns:
        Positions of positives, shape (rows,), and of their negatives, shape (rows, n); numbers of queries, positives
        and candidates by outcome.
    """
    n, sure = config.hard_negatives, f"score above {config.positive_threshold}"
    query = queries.get_indexer(documents.index)  # (documents,)
    state = states_of(documents, teacher, config, sure)  # (documents,)

    # P(q) and N(q)
    positive = state == (sure if pseudo else RELEVANT)
    negative = state == NOT_USED
    negative &= (pd.Series(negative).groupby(query).cumsum() <= n).to_numpy()

    # queries with a positive and n negatives
    has_positive = np.bincount(query[positive], minlength=len(queries)) > 0  # (queries,)
    usable = has_positive & (np.bincount(query[negative], minlength=len(queries)) == n)

    missing = f"no {sure}" if pseudo else "no relevant document"
    of_queries = np.select([usable, ~has_positive], ["kept", missing], TOO_FEW)
    outcomes = Counter(("queries", str(outcome)) for outcome in of_queries)
    used = usable[query]
    judged = (documents["source"] == RELEVANT).to_numpy()
    of_positives = np.select([positive & used, positive], ["kept", TOO_FEW], state)
    of_positives = of_positives[positive if pseudo else judged]
    outcomes.update(("positives", outcome) for outcome in of_positives.tolist())
    drawn = (documents["source"] == DRAWN).to_numpy()
    of_candidates = np.select(
        [positive & used, negative & used & drawn, negative & used],
        ["positive", "negative, drawn", "negative"],
        state,
    )[~judged]
    outcomes.update(("candidates", outcome) for outcome in of_candidates.tolist())

    rows = np.flatnonzero(positive & used)
    negatives = np.flatnonzero(negative & used).reshape(usable.sum(), n)  # (usable queries, n)
    number = np.cumsum(usable) - 1  # of each usable query
    return rows, negatives[number[query[rows]]], outcomes


def states_of(
    documents: pd.DataFrame, teacher: pt.Transformer | None, config: MiningConfig, sure: str
) -> np.ndarray:
    """Whether a document is relevant, usable as a negative (``NOT_USED``) or, with a high score, as a positive.

    All other states say why it is neither. Shape (documents,), strings; ``sure`` is the name of a high score.
    """
    judged = (documents["source"] == RELEVANT).to_numpy()
    again = documents.duplicated(["qid", "docno"]).to_numpy() & ~judged  # relevant ones come first
    text = documents["text"].str.split().str.join(" ")
    blank = (text == "").to_numpy()
    repeated = documents.assign(text=text).duplicated(["qid", "text"]).to_numpy()
    reasons = ["judged relevant", "no text", "same text as another", RELEVANT]
    state = np.select([again, blank, repeated, judged], reasons, default=NOT_USED).astype(object)
    candidate = state == NOT_USED
    if teacher is not None and candidate.any():
        scores = probabilities(teacher, documents[candidate])
        low, high = scores < config.negative_threshold, scores > config.positive_threshold
        state[candidate] = np.select([low, high], [NOT_USED, sure], "score between")
    return state
