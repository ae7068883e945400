"""The scores of a teacher, which are probabilities; each is computed once and kept on disk."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_caching import ScorerCache

PAIR = ["qid", "query", "docno", "text"]
PROBES = 8
TOLERANCE = 0.01  # the same model rounds differently on another device


class TeacherScores:
    """Scores pairs of a query and a text by a teacher; scores of pairs that it has scored before are read from disk.

    A score is found by query, docno and text, so the folder can serve other queries, retrievers and corpora. Scores of
    another teacher are a ValueError: some pairs with scores near 0.5 are scored again to tell teachers apart.

    Args:
        teacher: ``qid, query, docno, text`` to ``score``, a probability.
        folder: Folder of the scores, which are written after each call.
    """

    def __init__(self, teacher: pt.Transformer, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.teacher = teacher
        self._file = folder / "teacher.json"
        self._check_teacher()
        scores = folder / "scores"
        if not scores.exists():
            with pt.io.finalized_directory(str(scores)) as building:
                ScorerCache(Path(building, "cache"), key="document").close()
        self._cache = ScorerCache(scores / "cache", pt.apply.generic(self._score_new))

    def close(self) -> None:
        """Closes the file of scores."""
        self._cache.close()

    def __call__(self, pairs: pd.DataFrame) -> np.ndarray:
        """The probabilities of pairs (``qid, query, docno, text``), shape (pairs,)."""
        if not len(pairs):
            return np.zeros(0)
        documents = zip(pairs["docno"], pairs["text"], strict=True)
        digests = [blake2b(f"{docno}\0{text}".encode(), digest_size=16).hexdigest() for docno, text in documents]
        pairs = pairs[PAIR].assign(document=digests)
        # the cache cannot write the same pair twice
        scored = self._cache.transform(pairs.drop_duplicates(["query", "document"]))
        by_pair = scored.set_index(["query", "document"])["score"]
        return by_pair.reindex(pd.MultiIndex.from_frame(pairs[["query", "document"]])).to_numpy(dtype=float)

    def _score_new(self, pairs: pd.DataFrame) -> pd.DataFrame:
        scores = self._scores(pairs)
        if not self._file.exists():  # before any score is written
            unsure = np.argsort(np.abs(scores - 0.5), kind="stable")[:PROBES]
            probes = pairs[PAIR].assign(score=scores).iloc[unsure].to_dict("records")
            with pt.io.finalized_autoopen(str(self._file), "b") as out:
                out.write(json.dumps(probes, indent=1).encode())
        return pairs.assign(score=scores)

    def _check_teacher(self) -> None:
        """Raises ValueError if the file describes another teacher."""
        if not self._file.exists():
            return
        probes = pd.DataFrame(json.loads(self._file.read_text(encoding="utf-8")))
        now = self._scores(probes)
        differing = np.flatnonzero(np.abs(now - probes["score"]) > TOLERANCE)
        if len(differing):
            probe = probes.iloc[differing[0]]
            raise ValueError(
                f"{str(self._file.parent)!r} holds scores of another teacher: query {probe['query']!r} and document "
                f"{probe['docno']!r} have {probe['score']:.3f} there, and {now[differing[0]]:.3f} from "
                f"{self.teacher!r}: choose another folder, or delete it"
            )

    def _scores(self, pairs: pd.DataFrame) -> np.ndarray:
        scored = frame_from(self.teacher, pairs[PAIR], ["qid", "docno", "score"], "the teacher")
        by_pair = scored.drop_duplicates(["qid", "docno"]).set_index(["qid", "docno"])["score"]
        scores = by_pair.reindex(pd.MultiIndex.from_frame(pairs[["qid", "docno"]])).to_numpy(dtype=float)
        wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
        if len(wrong):
            pair = pairs.iloc[wrong[0]]
            raise ValueError(
                f"the teacher scores query {pair['query']!r}, document {pair['docno']!r} as {scores[wrong[0]]}, which "
                "is no probability in [0, 1]: use CrossEncoderReranker(..., probabilities=True), or put the sigmoid of "
                "the score after it: pt.apply.doc_score(lambda row: 1 / (1 + math.exp(-row['score'])))"
            )
        return scores


def frame_from(stage: pt.Transformer, inp: pd.DataFrame, columns: list[str], name: str) -> pd.DataFrame:
    """The result of a pipeline; a ValueError if it lacks one of these columns."""
    made = cast(pd.DataFrame, stage(inp))
    if missing := [column for column in columns if column not in made.columns]:
        raise ValueError(
            f"{name} should return {', '.join(columns)}, but {', '.join(missing)} is missing from what it returned: "
            f"{', '.join(made.columns)}"
        )
    return made
