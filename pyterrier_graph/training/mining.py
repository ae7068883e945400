"""Training examples for a dual-encoder: positives and hard negatives, denoised by a cross-encoder.

Qu et al.: RocketQA. NAACL 2021. Ren et al.: PAIR. Findings of ACL 2021, Sect. 3.3. Conti et al.: Context is gold to
find the gold passage. EMNLP 2025 (negatives from the same document).
"""

import hashlib
import os
import tempfile
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyterrier as pt
from datasets import Dataset

from pyterrier_graph.artifacts import file_sha256, sync
from pyterrier_graph.checks import check_fields, check_number, check_type
from pyterrier_graph.graphs.hetero_graph import HeteroGraph
from pyterrier_graph.ranges.identity import frame_sha256, pipeline_name
from pyterrier_graph.ranges.tables import read_table, stored_table
from pyterrier_graph.ranges.workers import Workers, check_workers
from pyterrier_graph.ranges.writer import as_json, kept
from pyterrier_graph.training.mined_frames import (
    DOCUMENT_COLUMNS,
    DRAWN,
    RELEVANT,
    SAME,
    TOP,
    checked_topics,
    columns_of,
    count_outcomes,
    relevant_documents,
    without,
)
from pyterrier_graph.training.teacher_scores import NewScores, TeacherScores, frame_from
from pyterrier_graph.training.validation import PASSAGE_NUMBER, documents_of, judged_ids

QUERY = "query"
NOTHING_RELEVANT = "no relevant document"
OUTCOMES = ["of", "outcome", "count"]


def example_columns(negatives: int) -> list[str]:
    """The columns of training examples: ``query, positive, negative_1, ..., negative_n``."""
    return [QUERY, "positive", *(f"negative_{number + 1}" for number in range(negatives))]


@dataclass(frozen=True)
class TrainingExamples:
    """What a dual-encoder learns from.

    Attributes:
        dataset: Texts, memory-mapped: ``query, positive, negative_1, ..., negative_n``.
        ids: Ids of the same rows: ``qid, positive_docno, negative_1_docno, ..., negative_n_docno``.
        report: Numbers of queries, positives and candidates by what became of them: ``count``, indexed by ``of`` and
            ``outcome``.
    """

    dataset: Dataset
    ids: Dataset
    report: pd.DataFrame

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass(eq=False, kw_only=True)
class HardNegativeMiner:
    """Makes training examples from topics and any retriever.

    Each example has a query, a positive, and the same number of hard negatives::

        miner = ptg.HardNegativeMiner(bm25 % 200, pt.text.get_text(dataset), teacher=cross_encoder, folder="mined")
        examples = miner.labeled(dataset.get_topics(), dataset.get_qrels())
        more = miner.pseudo_labeled(pt.io.read_topics("more.txt", "singleline", tokenise=False))

    **Candidates** are the ``depth`` best documents of each query. The teacher scores them: documents below
    ``negative_threshold`` are negatives, those above ``positive_threshold`` get positive pseudo-labels, and all others
    are ignored. Documents without text are ignored, and so are all but the first of several with the same text.

    **Negatives** of a query are its ``hard_negatives`` best-ranked ones. All positives of the query share them.

    **Negatives from the same document** teach the encoder to tell a passage from its neighbors, which are about the
    same subject (Conti et al. 2025). With ``same_document=1`` one of the negatives is a passage of a relevant passage's
    document that is not relevant itself, drawn at random; where a document has no other passage, a candidate takes its
    place. Neighbors that answer the query, too, but are not judged, are negatives unless a teacher leaves them out.

    **Scores** are kept in the folder, so that other thresholds, retrievers or queries reuse them. A run that was killed
    continues if it is repeated with the same options, topics and judgments, and pipelines that are shown alike
    (``repr``).

    Args:
        candidates: Retriever: ``qid, query`` to ``qid, docno, score``. Qrels must be of documents that it retrieves.
        texts: Adds ``text`` by ``docno``, such as ``pt.text.get_text(dataset)``, also to relevant documents that are
            not retrieved.
        teacher: ``qid, query, docno, text`` to ``score``, a probability, such as
            ``CrossEncoderReranker(..., probabilities=True)``. Without one, every document that is not relevant is a
            negative, and there are no pseudo-labels.
        hard_negatives: Number per row (the papers: 4); 0 leaves the texts of the other rows of a batch as negatives.
        same_document: So many of the hard negatives, at most, are from the documents of relevant passages.
        graph: The graph of these documents.
        depth: Number of best documents per query (the authors' code: 50).
        positive_threshold: s_pos.
        negative_threshold: s_neg.
        pseudo_positives: Maximal number of pseudo-labeled positives per query, which are those with the best scores.
            None takes all above s_pos, as PAIR says; the authors' code takes 1.
        folder: Folder for scores and examples. By default a temporary one, which lives as long as the miner or any of
            its examples.
        seed: Seed of random draws.
        batch_size: Number of queries at once.
        workers: Number of processes, or ``'ray'``: see :mod:`~pyterrier_graph.ranges.writer`.
        verbose: Whether to show progress.
    """

    candidates: pt.Transformer = field(kw_only=False)
    texts: pt.Transformer = field(kw_only=False)
    teacher: pt.Transformer | None = None
    hard_negatives: int = 1
    same_document: int = 0
    graph: HeteroGraph | None = None
    depth: int = 50
    positive_threshold: float = 0.9
    negative_threshold: float = 0.1
    pseudo_positives: int | None = None
    folder: str | os.PathLike[str] | None = None
    seed: int = 0
    batch_size: int = 64
    workers: Workers = 1
    verbose: bool = True

    def __post_init__(self) -> None:
        check_type("candidates", self.candidates, pt.Transformer, "a retriever, such as bm25 % 200")
        check_type("texts", self.texts, pt.Transformer, "a loader of texts, such as pt.text.get_text(dataset)")
        check_type("teacher", self.teacher, (pt.Transformer, NoneType), "a reranker, such as CrossEncoderReranker(...)")
        check_type("graph", self.graph, (HeteroGraph, NoneType), "a DocumentGraph, such as ptg.DocumentGraph(path)")
        check_fields(self, hard_negatives=0, same_document=0, depth=1, batch_size=1, seed=0, pseudo_positives=1)
        if self.same_document > self.hard_negatives:
            raise ValueError(f"same_document={self.same_document} is more than hard_negatives={self.hard_negatives}")
        if self.same_document and self.graph is None:
            raise ValueError("same_document needs graph=, the DocumentGraph of the passages")
        check_workers(self.workers)
        check_number("positive_threshold", self.positive_threshold, 0, 1)
        check_number("negative_threshold", self.negative_threshold, 0, self.positive_threshold, below=True)
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_temporary"}

    def labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame) -> TrainingExamples:
        """Examples whose positives are judged relevant, one row for each of them, whatever its score.

        The teacher denoises the negatives only, as in RocketQA, and no relevant document is a negative of its query. If
        too few of the ``depth`` best documents are negatives, up to ``hard_negatives`` documents are drawn at random
        from the rest of the ranking and take the remaining places if the teacher scores them as negatives (the authors'
        code does not score them). A query that still has too few negatives is dropped.

        Args:
            topics: ``qid, query``.
            qrels: ``qid, docno, label``; a document with a label above 0 is relevant.

        Raises:
            KeyError: If ``texts`` does not know a document.
            ValueError: If a query is empty or there twice, none is judged, a pipeline does not return what it should,
                the folder holds scores of another teacher, or there is no example.
        """
        return self._mine(topics, qrels, pseudo=False)

    def pseudo_labeled(self, topics: pd.DataFrame, qrels: pd.DataFrame | None = None) -> TrainingExamples:
        """Examples whose positives are pseudo-labeled by the teacher, one row for each of them.

        A query without positives, or with too few negatives, is dropped. For the frames and errors see :meth:`labeled`.
        If there are judgments, relevant documents get no pseudo-label, and are not negatives either.
        """
        if self.teacher is None:
            raise ValueError("pseudo-labels come from a teacher: give HardNegativeMiner(..., teacher=...)")
        return self._mine(topics, qrels, pseudo=True)

    def _mine(self, topics: pd.DataFrame, qrels: pd.DataFrame | None, pseudo: bool) -> TrainingExamples:
        topics = checked_topics(topics)
        relevant = relevant_documents(topics, qrels)
        outcomes: Counter[tuple[str, str]] = Counter({("queries", "kept"): 0})
        if not pseudo:
            if not len(relevant):
                raise ValueError("none of the topics has a relevant document (label > 0) in qrels")
            outcomes["queries", NOTHING_RELEVANT] = len(topics) - relevant.index.nunique()
            topics = topics.loc[relevant.index.unique()]
        texts = example_columns(self.hard_negatives)
        ids = ["qid", *(f"{column}_docno" for column in texts[1:])]
        schema = pa.schema([(column, pa.string()) for column in [*texts, *ids]])
        folder = Path(self._temporary.name if self.folder is None else self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        kind = "pseudo-labeled" if pseudo else "labeled"
        identity = self._identity(topics, relevant) | {"kind": kind}
        scores = None if self.teacher is None else TeacherScores(self.teacher, folder)
        place = folder / f"{kind}-{hashlib.sha256(as_json(identity).encode()).hexdigest()[:16]}.unfinished"
        progress: dict[str, Any] = {"desc": "HardNegativeMiner", "unit": "query", "delay": 1}
        progress |= {"disable": not self.verbose, "workers": self.workers}
        with (
            nullcontext() if scores is None else closing(scores),
            kept(place, identity, len(topics), self.batch_size) as writer,
        ):

            def mined(numbers: np.ndarray) -> dict[str, np.ndarray]:
                part = topics.iloc[numbers]
                here = relevant.loc[part.index[0] : part.index[-1]]
                return self._mined(part, here, scores, pseudo=pseudo, schema=schema)

            def add(number: int) -> None:
                if scores is not None:
                    new = writer.ranges.read(number)
                    scores.add(NewScores(*(read_table(new[name]).to_pandas() for name in ("scores", "probes"))))

            writer.compute(mined, each_time=add, **progress)
            partial = place / "examples.arrow"
            with pa.ipc.new_stream(str(partial), schema) as out:
                for arrays in writer.read():
                    out.write_table(read_table(arrays["examples"]))
                    became = read_table(arrays["outcomes"]).to_pandas()
                    outcomes.update({(of, outcome): count for of, outcome, count in became.itertuples(index=False)})
            report = pd.DataFrame({"count": outcomes}).rename_axis(index=["of", "outcome"])
            if not outcomes["positives", "kept"]:
                raise ValueError(f"there are no training examples:\n{report.to_string()}")
            # named by its content, so that a file in use is never overwritten, and the same file is not stored twice
            path = folder / f"{kind}-{file_sha256(partial)[:16]}.arrow"
            if not path.exists():
                sync(partial)
                partial.rename(path)
                sync(folder)
        examples = Dataset.from_file(str(path))
        made = TrainingExamples(examples.select_columns(texts), examples.select_columns(ids), report)
        vars(made)["_temporary"] = self._temporary  # a folder that is deleted with the last reference to it
        return made

    def _identity(self, topics: pd.DataFrame, relevant: pd.DataFrame) -> dict[str, Any]:
        """All that the examples depend on."""
        others = ("workers", "folder", "verbose", "graph")
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in others}
        identity = {
            name: pipeline_name(value) if isinstance(value, pt.Transformer) else value
            for name, value in options.items()
        }
        if self.graph is not None:
            identity["graph"] = self.graph.fingerprint()
        return identity | {"topics_sha256": frame_sha256(topics), "relevant_sha256": frame_sha256(relevant)}

    def _mined(
        self,
        topics: pd.DataFrame,
        relevant: pd.DataFrame,
        scores: TeacherScores | None,
        *,
        pseudo: bool,
        schema: pa.Schema,
    ) -> dict[str, np.ndarray]:
        """The examples of some queries, what became of their documents, and new scores, as they are stored."""
        outcomes: Counter[tuple[str, str]] = Counter()
        documents = self._documents(topics, relevant, pseudo)
        *chosen, new = self._choose(documents, topics.index, scores, pseudo, outcomes)
        counts = pd.DataFrame(
            [(*names, count) for names, count in outcomes.items()], columns=["of", "outcome", "count"]
        )
        tables = {"examples": pa.table(columns_of(documents, *chosen), schema=schema), "outcomes": counts}
        if new is not None:
            tables |= {"scores": new.pairs, "probes": new.probes}
        return {name: stored_table(table) for name, table in tables.items()}

    def _documents(self, topics: pd.DataFrame, relevant: pd.DataFrame, pseudo: bool) -> pd.DataFrame:
        """The documents of each query with their texts: relevant ones, then candidates in their order."""
        found = relevant
        if pseudo or self.hard_negatives:
            retrieved = self._retrieved(topics, drawing=not pseudo)
            if len(relevant) and not judged_ids(retrieved["docno"], relevant).equals(retrieved["docno"]):
                raise ValueError(
                    f"qrels judge documents ({relevant['docno'].iloc[0]!r}), but candidates are passages "
                    f"({retrieved['docno'].iloc[0]!r}): give judgments of passages, or candidates that are documents"
                )
            if self.same_document and not pseudo:
                neighbors = self._neighbors(relevant)
                retrieved = pd.concat([neighbors, without(retrieved, neighbors)])
            found = pd.concat([relevant, retrieved]).sort_index(kind="stable")
        return found.assign(text=self._texts_of(found))

    def _neighbors(self, relevant: pd.DataFrame) -> pd.DataFrame:
        """Passages that are not relevant, of the documents of relevant passages: some of each query's, drawn."""
        assert self.graph is not None
        if len(documents := relevant["docno"][~relevant["docno"].str.contains(PASSAGE_NUMBER)]):
            raise ValueError(f"same_document needs judgments of passages (docno%pN), qrels judge {documents.iloc[0]!r}")
        judged = relevant.assign(docno=documents_of(relevant["docno"])).drop_duplicates(["qid", "docno"])
        rows, nodes = self.graph.passages_of_documents(self.graph.document_of(judged["docno"].tolist()))
        passages = judged.iloc[rows].assign(docno=self.graph.ids_of(nodes), source=SAME)
        return self._draw(without(passages, relevant), self.same_document)

    def _draw(self, documents: pd.DataFrame, count: int) -> pd.DataFrame:
        """So many documents of each query, by a random number for each pair: it does not depend on the batch."""
        number = pd.util.hash_pandas_object(
            documents[["qid", "docno"]], index=False, hash_key=f"{self.seed:016d}"[-16:]
        )
        return documents.iloc[number.to_numpy().argsort()].groupby(level=0).head(count)

    def _retrieved(self, topics: pd.DataFrame, drawing: bool) -> pd.DataFrame:
        """The first documents of each ranking, then documents drawn from its rest."""
        found = frame_from(self.candidates, topics, ["qid", "docno", "score"], "candidates")
        found = found[["qid", "docno", "score"]].astype({"qid": str, "docno": str})
        if not np.isfinite(found["score"].to_numpy(dtype=float)).all():
            raise ValueError("candidates should return scores that are numbers")
        found = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(["qid", "docno"])
        found = topics[["qid", "query"]].reset_index(names="number").merge(found, on="qid").set_index("number")
        top = found.groupby(level=0).cumcount() < self.depth
        if not drawing:
            return found[top].assign(source=TOP)[DOCUMENT_COLUMNS]
        drawn = self._draw(found[~top], self.hard_negatives)
        return pd.concat([found[top].assign(source=TOP), drawn.assign(source=DRAWN)])[DOCUMENT_COLUMNS]

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
    ) -> tuple[np.ndarray, np.ndarray, NewScores | None]:
        """Chooses the documents of the examples, and counts what became of all.

        Returns the positions of the positives, shape (rows,), and of the negatives, shape (rows, hard_negatives), and
        scores that are new.
        """
        query = queries.get_indexer(documents.index)
        relevant = (documents["source"] == RELEVANT).to_numpy()
        repeated = documents.duplicated(["qid", "docno"]).to_numpy()  # candidates that are relevant; those come first
        blank = (documents["text"].str.strip() == "").to_numpy()
        same = documents.duplicated(["qid", "text"]).to_numpy()
        usable = ~(relevant | repeated | blank | same)
        probability = np.full(len(documents), np.nan)
        low, new = usable, None
        if scores is not None:
            probability[usable], new = scores.of(documents[usable])
            low = probability < self.negative_threshold
        high = probability > self.positive_threshold

        positive = high if pseudo else relevant & ~blank & ~same
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
        count_outcomes(outcomes, "queries", {"kept": kept, f"no {sure}" if pseudo else NOTHING_RELEVANT: ~found} | few)
        lost = {"not the best": high & ~positive} if pseudo else {"no text": blank, "same text as another": same}
        reasons = {"kept": positive_used} | lost | {"too few negatives": ~complete[query]}
        count_outcomes(outcomes, "positives", reasons, of_these=high if pseudo else relevant)
        drawn, same_document = ((documents["source"] == source).to_numpy() for source in (DRAWN, SAME))
        reasons = {"positive": positive_used} if pseudo else {"negative, drawn": negative_used & drawn}
        reasons |= {"negative, same document": negative_used & same_document} if self.same_document else {}
        reasons |= {"negative": negative_used, "judged relevant": repeated}
        reasons |= {"no text": blank, "same text as another": same}
        reasons |= {sure: high, "score between": ~(low | high), "not used": low}
        count_outcomes(outcomes, "candidates", reasons, of_these=~relevant)

        at = np.flatnonzero(positive_used)
        negatives = np.flatnonzero(negative_used).reshape(kept.sum(), self.hard_negatives)
        return at, negatives[(np.cumsum(kept) - 1)[query[at]]], new
