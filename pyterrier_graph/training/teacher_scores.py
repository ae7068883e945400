"""The scores of a teacher, which are probabilities; each is computed once and kept on disk."""

import json
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_caching import ScorerCache

PAIR = ["qid", "query", "docno", "text"]
PROBES = 8
VARIABLES = 500  # of one statement; SQLite has at most 999 in older versions
TOLERANCE = 0.01  # the same model rounds differently on another device


class NewScores(NamedTuple):
    """Scores of pairs that had none.

    Attributes:
        pairs: A row per pair: ``query, document`` (a digest of docno and text), ``score``.
        probes: Some pairs with scores near 0.5, by which another teacher would be recognized: as ``pairs``, with
            ``qid, docno, text``.
    """

    pairs: pd.DataFrame
    probes: pd.DataFrame


class TeacherScores:
    """Scores pairs of a query and a text by a teacher; scores of pairs that it has scored before are read from disk.

    A score is found by query, docno and text, so the folder can serve other queries, retrievers and corpora. Scores of
    another teacher are a ValueError: some pairs with scores near 0.5 are scored again to tell teachers apart. Several
    processes may read scores, and one of them adds new ones.

    Args:
        teacher: ``qid, query, docno, text`` to ``score``, a probability.
        folder: Folder of the scores.
    """

    def __init__(self, teacher: pt.Transformer, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.teacher, self.folder = teacher, folder
        self._file = folder / "teacher.json"
        self._check_teacher()
        scores = folder / "scores"
        if not scores.exists():
            with pt.io.finalized_directory(str(scores)) as building:
                ScorerCache(Path(building, "cache"), key="document").close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}  # a connection

    @cached_property
    def _cache(self) -> ScorerCache:
        return ScorerCache(self.folder / "scores" / "cache")

    def close(self) -> None:
        """Closes the file of scores."""
        if "_cache" in vars(self):
            vars(self).pop("_cache").close()

    def of(self, pairs: pd.DataFrame) -> tuple[np.ndarray, NewScores]:
        """The probabilities of pairs (``qid, query, docno, text``), shape (pairs,), and those that are new."""
        documents = zip(pairs["docno"], pairs["text"], strict=True)
        digests = [blake2b(f"{docno}\0{text}".encode(), digest_size=16).hexdigest() for docno, text in documents]
        pairs = pairs[PAIR].assign(document=digests).reset_index(drop=True)
        scores = np.full(len(pairs), np.nan)
        for query, rows in pairs.groupby("query").indices.items():
            for row, score in zip(rows, self._stored(str(query), pairs["document"].iloc[rows].tolist()), strict=True):
                scores[row] = score
        missing = np.isnan(scores)
        new = pairs[missing].drop_duplicates(["query", "document"])
        new = new.assign(score=self._scores(new) if len(new) else 0.0)
        by_pair = new.set_index(["query", "document"])["score"]
        scores[missing] = by_pair.reindex(pd.MultiIndex.from_frame(pairs.loc[missing, ["query", "document"]]))
        unsure = np.argsort(np.abs(new["score"].to_numpy(dtype=float) - 0.5), kind="stable")[:PROBES]
        return scores, NewScores(new[["query", "document", "score"]], new[[*PAIR, "score"]].iloc[unsure])

    def add(self, new: NewScores) -> None:
        """Stores new scores; those that are there already stay."""
        if not len(new.pairs):
            return
        if not self._file.exists():  # before any score is written
            with pt.io.finalized_autoopen(str(self._file), "b") as out:
                out.write(json.dumps(new.probes.to_dict("records"), indent=1).encode())
        rows = new.pairs.itertuples(index=False, name=None)
        with self._cache.db as db:
            db.executemany("INSERT OR IGNORE INTO cache ([group], key, value) VALUES (?, ?, ?)", rows)

    def _stored(self, query: str, documents: list[str]) -> list[float]:
        """Scores of a query's documents; NaN for those that have none."""
        found: dict[str, float] = {}
        for start in range(0, len(documents), VARIABLES):
            part = documents[start : start + VARIABLES]
            marks = ", ".join("?" * len(part))
            select = f"SELECT key, value FROM cache WHERE [group] = ? AND key IN ({marks})"
            found |= dict(self._cache.db.execute(select, [query, *part]))
        return [found.get(document, np.nan) for document in documents]

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
