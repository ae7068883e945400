"""Training examples for a dual-encoder: positives and hard negatives, denoised by a cross-encoder.

Qu et al.: RocketQA. NAACL 2021. Ren et al.: PAIR. Findings of ACL 2021, Sect. 3.3.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyterrier as pt
from datasets import Dataset

from pyterrier_graph.training.teacher_scores import TeacherScores, frame_from

QUERY_COLUMNS = ["qid", "query", "docno", "source"]  # of documents, whose index is the position of their query
JUDGED, TOP, DRAWN = "judged", "top", "drawn"  # where they come from
NOTHING_RELEVANT = "no relevant document"


@dataclass(frozen=True)
class TrainingExamples:
    """What a dual-encoder learns from.

    Attributes:
        dataset: Texts, memory-mapped: ``query, positive, negative_1, ..., negative_n``, as
            :class:`~pyterrier_graph.training.pair_loss.PAIRLoss` takes them.
        ids: Of the same rows: ``qid, positive_docno, negative_1_docno, ..., negative_n_docno``.
        report: How many queries, positives and candidates there were, and what became of them, as ``count`` by
            ``of`` and ``outcome``.
    """

    dataset: Dataset
    ids: Dataset
    report: pd.DataFrame
    _temporary: Any = field(default=None, repr=False)  # a folder that is deleted with the last reference to this

    def __len__(self) -> int:
        return len(self.dataset)


class HardNegativeMiner:
    """Makes training examples from topics and any retriever.

    A row has a query, a positive, and as many hard negatives as any other row::

        miner = ptg.HardNegativeMiner(bm25 % 200, pt.text.get_text(dataset), teacher=cross_encoder, folder="mined")
        examples = miner.labeled(dataset.get_topics(), dataset.get_qrels())
        more = miner.pseudo_labeled(pt.io.read_topics("more.txt", "singleline", tokenise=False))

    **Candidates.** The ``depth`` best documents of each query, in the order of the ranking. The teacher scores them.
    Those below ``negative_threshold`` are negatives, those above ``positive_threshold`` positives, and of the others
    nothing is believed. Two documents of a query with the same text are one, and one without text is none.

    **Negatives** of a query are the first ``hard_negatives`` documents that qualify. All its positives share them.

    **Scores** are kept, so that a run that was killed goes on where it was, and other thresholds, retrievers or queries
    need no scores again that there are: see :class:`~pyterrier_graph.training.teacher_scores.TeacherScores`.

    Args:
        candidates: Retriever: ``qid, query`` to ``qid, docno, score``. Judgments and labels are of what it retrieves.
        texts: Adds ``text`` by ``docno``, such as ``pt.text.get_text(dataset)``. It serves relevant documents that are
            not retrieved as well. To learn from titles, too: ``pt.text.get_text(dataset) >> pt.apply.text(...)``.
        teacher: ``qid, query, docno, text`` to ``score``, a probability, such as
            ``CrossEncoderReranker(..., probabilities=True)``. Without one, every document that is not relevant is a
            negative, and there are no pseudo labels.
        hard_negatives: Per row; 0 if the other rows of a batch are negatives enough.
        depth: Documents of each query that are looked at (the authors' code: 50).
        positive_threshold: s_pos.
        negative_threshold: s_neg.
        pseudo_positives: Pseudo-labeled positives of a query at most, those with the best scores. None takes all above
            s_pos, as PAIR says; the authors' code takes 1.
        folder: For scores and examples, which stay there. By default a temporary one, which lives as long as the miner
            or any of its examples.
        seed: Of what is drawn.
        batch_size: Queries at once.
        verbose: Whether to show progress.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        candidates: pt.Transformer,
        texts: pt.Transformer,
        *,
        teacher: pt.Transformer | None = None,
        hard_negatives: int = 4,
        depth: int = 50,
        positive_threshold: float = 0.9,
        negative_threshold: float = 0.1,
        pseudo_positives: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        seed: int = 0,
        batch_size: int = 64,
        verbose: bool = False,
    ) -> None:
        if hard_negatives < 0:
            raise ValueError(f"hard_negatives must not be negative, got {hard_negatives}")
        if min(depth, batch_size, pseudo_positives or 1) < 1 or pseudo_positives == 0:
            raise ValueError("depth, batch_size and pseudo_positives must be positive")
        if not 0 <= negative_threshold < positive_threshold <= 1:
            raise ValueError(
                "thresholds must be 0 <= negative_threshold < positive_threshold <= 1, "
                f"got {negative_threshold} and {positive_threshold}"
            )
        self.candidates = candidates
        self.texts = texts
        self.teacher = teacher
        self.hard_negatives = hard_negatives
        self.depth = depth
        self.positive_threshold = positive_threshold
        self.negative_threshold = negative_threshold
        self.pseudo_positives = pseudo_positives
        self.folder = folder
        self.seed = seed
        self.batch_size = batch_size
        self.verbose = verbose
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> TrainingExamples:
        """Examples whose positives are judged relevant.

        There is a row for each of them, whatever the teacher thinks: it denoises the negatives only, as in RocketQA. No
        document that is judged relevant for the query is a negative. Where too few of the ``depth`` best qualify, up
        to ``hard_negatives`` documents are drawn at random from the rest of the ranking and take the places that are
        left if they qualify (the authors' code does not ask the teacher about these). A query that has too few even so
        is dropped.

        What PAIR is fine-tuned with, labels and pseudo labels of labeled queries, is::

            pseudo = miner.pseudo_labeled(topics, qrels)
            datasets.concatenate_datasets([miner.labeled(topics, qrels).dataset, pseudo.dataset])

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``; a document with a label above 0 is relevant.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If ``texts`` does not know a document.
            ValueError: If a query is empty or there twice, none is judged, a pipeline does not return what it should,
                the folder holds scores of another teacher, or nothing is left.
        """
        return self._mine(topics, qrels, pseudo=False)

    def pseudo_labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame | None = None) -> TrainingExamples:
        """Examples whose positives are those that the teacher is sure about.

        There is a row for each. A query without any, or with too few negatives, is dropped.

        Args:
            topics: ``qid, query``; from a file by ``pt.io.read_topics``.
            qrels: Judgments, if there are any: what is relevant is then known already, and neither a positive again
                nor a negative.

        Raises:
            pt.validate.InputValidationError: If a column is missing.
            KeyError: If ``texts`` does not know a document.
            ValueError: If there is no teacher, and as for :meth:`labeled`.
        """
        if self.teacher is None:
            raise ValueError("pseudo labels come from a teacher: give one to HardNegativeMiner")
        return self._mine(topics, qrels, pseudo=True)

    def _mine(self, topics: pd.DataFrame, qrels: pd.DataFrame | None, pseudo: bool) -> TrainingExamples:
        topics = _checked_topics(topics)
        relevant = _relevant(topics, qrels)
        outcomes: Counter[tuple[str, str]] = Counter({("queries", "kept"): 0})
        if not pseudo:
            if not len(relevant):
                raise ValueError("none of the topics has a relevant document (label > 0) in qrels")
            outcomes["queries", NOTHING_RELEVANT] = len(topics) - relevant.index.nunique()
            topics = topics.loc[relevant.index.unique()]
        folder = Path(self._temporary.name if self.folder is None else self.folder)
        file = _ExamplesFile(folder, "pseudo-labeled" if pseudo else "labeled", self.hard_negatives)
        with ExitStack() as opened:
            scores = None if self.teacher is None else opened.enter_context(TeacherScores(self.teacher, folder))
            opened.enter_context(file)
            starts = range(0, len(topics), self.batch_size)
            for start in pt.tqdm(starts, desc="HardNegativeMiner", unit="batch", disable=not self.verbose):
                part = topics.iloc[start : start + self.batch_size]
                documents = self._documents(part, relevant.loc[part.index[0] : part.index[-1]], pseudo)
                file.write(documents, *self._choose(documents, part.index, scores, pseudo, outcomes))
            report = pd.DataFrame({"count": outcomes}).rename_axis(index=["of", "outcome"])
            if not file.rows:
                raise ValueError(f"nothing is left to train with:\n{report.to_string()}")
        examples = Dataset.from_file(str(file.path))
        texts, ids = (examples.select_columns(columns) for columns in (file.texts, file.ids))
        return TrainingExamples(texts, ids, report, self._temporary)

    def _documents(self, topics: pd.DataFrame, relevant: pd.DataFrame, pseudo: bool) -> pd.DataFrame:
        """The documents of each query with their texts: what is judged relevant, then candidates as they are taken."""
        found = relevant
        if pseudo or self.hard_negatives:
            found = pd.concat([relevant, self._retrieved(topics, drawing=not pseudo)]).sort_index(kind="stable")
        return found.assign(text=self._texts_of(found))

    def _retrieved(self, topics: pd.DataFrame, drawing: bool) -> pd.DataFrame:
        """The first documents of the ranking of each query, then those drawn from the others."""
        found = frame_from(self.candidates, topics, ["qid", "docno", "score"], "candidates")
        found = found[["qid", "docno", "score"]].astype({"qid": str, "docno": str})
        if not np.isfinite(found["score"].to_numpy(dtype=float)).all():
            raise ValueError("candidates should return scores that are numbers")
        found = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(["qid", "docno"])
        found = topics[["qid", "query"]].reset_index(names="number").merge(found, on="qid").set_index("number")
        top = found.groupby(level=0).cumcount() < self.depth
        if not drawing:
            return found[top].assign(source=TOP)[QUERY_COLUMNS]
        rest = found[~top]
        # a number for each pair, so that what is drawn does not depend on the batch
        lot = pd.util.hash_pandas_object(rest[["qid", "docno"]], index=False, hash_key=f"{self.seed:016d}"[-16:])
        drawn = rest.iloc[lot.to_numpy().argsort()].groupby(level=0).head(self.hard_negatives)
        return pd.concat([found[top].assign(source=TOP), drawn.assign(source=DRAWN)])[QUERY_COLUMNS]

    def _texts_of(self, documents: pd.DataFrame) -> pd.Series:
        pairs = documents[["qid", "query", "docno"]].drop_duplicates("docno")
        if not len(pairs):
            return pd.Series(dtype=object)
        try:
            loaded = frame_from(self.texts, pairs, ["docno", "text"], "texts")
        except KeyError as error:
            raise KeyError(f"texts does not know a document of candidates or qrels: {str(error)[:200]}") from error
        texts = loaded.drop_duplicates("docno").set_index("docno")["text"].reindex(documents["docno"])
        for docno, text in texts.items():
            if not isinstance(text, str):
                raise KeyError(f"texts does not know document {docno!r} of candidates or qrels: its text is {text!r}")
        return texts.set_axis(documents.index)

    def _choose(
        self,
        documents: pd.DataFrame,
        queries: pd.Index,
        scores: TeacherScores | None,
        pseudo: bool,
        outcomes: Counter[tuple[str, str]],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which documents are examples, and counts what became of all.

        Returns:
            Positions of the positives, shape (rows,), and of the negatives, shape (rows, hard_negatives).
        """
        query = queries.get_indexer(documents.index)
        judged = (documents["source"] == JUDGED).to_numpy()
        known = documents.duplicated(["qid", "docno"]).to_numpy()  # as relevant; those that are judged come first
        blank = (documents["text"].str.strip() == "").to_numpy()
        same = documents.duplicated(["qid", "text"]).to_numpy()
        usable = ~(judged | known | blank | same)
        probability = np.full(len(documents), np.nan)
        low = usable
        if scores is not None:
            probability[usable] = scores(documents[usable])
            low = probability < self.negative_threshold
        high = probability > self.positive_threshold

        positive = high if pseudo else judged & ~blank & ~same
        if pseudo and self.pseudo_positives is not None:
            place = pd.Series(-probability).where(high).groupby(query).rank(method="first")
            positive = (place <= self.pseudo_positives).to_numpy()
        negative = low & (pd.Series(low).groupby(query).cumsum() <= self.hard_negatives).to_numpy()
        found = np.bincount(query[positive], minlength=len(queries)) > 0
        complete = np.bincount(query[negative], minlength=len(queries)) == self.hard_negatives
        kept = found & complete
        positive_used, negative_used = positive & kept[query], negative & kept[query]

        sure = f"score above {self.positive_threshold}"
        few = {"too few negatives": ~complete}
        _count(outcomes, "queries", {"kept": kept, f"no {sure}" if pseudo else NOTHING_RELEVANT: ~found} | few)
        lost = {"not the best": high & ~positive} if pseudo else {"no text": blank, "same text as another": same}
        reasons = {"kept": positive_used} | lost | {"too few negatives": ~complete[query]}
        _count(outcomes, "positives", {reason: rows & (high if pseudo else judged) for reason, rows in reasons.items()})
        drawn = (documents["source"] == DRAWN).to_numpy()
        reasons = {"positive": positive_used} if pseudo else {"negative, drawn": negative_used & drawn}
        reasons |= {"negative": negative_used, "judged relevant": known, "no text": blank, "same text as another": same}
        reasons |= {sure: high, "score between": ~(low | high), "not used": low}
        _count(outcomes, "candidates", {reason: rows & ~judged for reason, rows in reasons.items()})

        at = np.flatnonzero(positive_used)
        negatives = np.flatnonzero(negative_used).reshape(kept.sum(), self.hard_negatives)
        return at, negatives[(np.cumsum(kept) - 1)[query[at]]]


def _count(outcomes: Counter[tuple[str, str]], of: str, reasons: dict[str, np.ndarray]) -> None:
    """Counts rows by the first reason that holds for each."""
    counted: np.ndarray | bool = False
    for reason, rows in reasons.items():
        outcomes[of, reason] += int((rows & ~counted).sum())
        counted = counted | rows


def _checked_topics(topics: pd.DataFrame) -> pd.DataFrame:
    """Topics with ids as text, numbered.

    Raises:
        pt.validate.InputValidationError: If a column is missing.
        ValueError: If there are none, or one has no text or is there twice.
    """
    pt.validate.columns(topics, includes=["qid", "query"])
    if not len(topics):
        raise ValueError("there are no topics")
    topics = topics.astype({"qid": str}).reset_index(drop=True)
    if topics["qid"].duplicated().any():
        raise ValueError(f"topics have query {topics['qid'][topics['qid'].duplicated()].iloc[0]!r} twice")
    for qid, query in zip(topics["qid"], topics["query"], strict=True):
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"query {qid!r} has no text: {query!r}")
    return topics


def _relevant(topics: pd.DataFrame, qrels: pd.DataFrame | None) -> pd.DataFrame:
    """The relevant documents of the topics, by the number of their query.

    Raises:
        pt.validate.InputValidationError: If a column of the judgments is missing.
    """
    if qrels is None:
        qrels = pd.DataFrame({"qid": [], "docno": [], "label": []})
    pt.validate.columns(qrels, includes=["qid", "docno", "label"])
    relevant = qrels.loc[qrels["label"] > 0, ["qid", "docno"]].astype(str).drop_duplicates()
    relevant = relevant.merge(topics[["qid", "query"]].reset_index(names="number"), on="qid")
    return relevant.set_index("number").sort_index(kind="stable").assign(source=JUDGED)[QUERY_COLUMNS]


class _ExamplesFile:
    """Writes examples as they come, into an Arrow file that is named by its content when it is complete.

    So what is there already is neither written over nor there twice, while somebody reads it.

    Attributes:
        texts: Columns for the loss.
        ids: Columns for the user.
        rows: How many were written.
        path: The file, when it is complete.
    """

    def __init__(self, folder: Path, name: str, hard_negatives: int) -> None:
        self.texts = ["query", "positive", *(f"negative_{place}" for place in range(1, hard_negatives + 1))]
        self.ids = ["qid", *(f"{column}_docno" for column in self.texts[1:])]
        self.rows = 0
        self.path = folder / f"{name}.partial"

    def __enter__(self) -> _ExamplesFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = pa.schema([(column, pa.string()) for column in [*self.texts, *self.ids]])
        self._writer = pa.ipc.new_stream(str(self.path), self._schema)
        return self

    def write(self, documents: pd.DataFrame, positives: np.ndarray, negatives: np.ndarray) -> None:
        """Adds rows, given the positions of their documents."""
        chosen = np.column_stack([positives, negatives])
        parts = [
            documents[name].to_numpy(dtype=object)[rows]
            for name, columns in (("query", chosen[:, :1]), ("text", chosen), ("qid", chosen[:, :1]), ("docno", chosen))
            for rows in columns.T
        ]
        if len(chosen):
            self._writer.write_batch(pa.record_batch(parts, schema=self._schema))
            self.rows += len(chosen)

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        self._writer.close()
        if error is not None:
            self.path.unlink()
            return
        with self.path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()[:16]
        complete = self.path.with_name(f"{self.path.stem}-{digest}.arrow")
        if complete.exists():
            self.path.unlink()
        else:
            self.path.rename(complete)
        self.path = complete
