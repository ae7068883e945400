"""Which passages contain an answer, as in DPR's released code (``dpr/data/qa_validation.py``, match ``string``)."""

import unicodedata

import pandas as pd
import regex

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")  # DPR's SimpleTokenizer
END = "\0"  # control characters are no tokens


def words(text: str) -> str:
    """The lower-case tokens of a text, each after a NUL character, with one at the end."""
    normalized = unicodedata.normalize("NFD", text)
    tokens = [token.lower() for token in TOKEN.findall(normalized)]
    return "".join(END + token for token in tokens) + END


def has_answer(text: str, answers: list[str]) -> bool:
    """Whether a text contains an answer as a sequence of tokens."""
    tokens = words(text)
    return any(words(answer) in tokens for answer in answers)


def first_answers(answers: pd.DataFrame, run: pd.DataFrame) -> dict[str, int]:
    """The rank, from 1, of the first passage with an answer, for each question that has one.

    Args:
        answers: ``query_id, answer``, one row per answer.
        run: ``query_id, doc_id, score, text``.
    """
    answers_of = answers.groupby("query_id")["answer"].agg(list)
    has_answers = run["query_id"].isin(answers_of.index)
    run = run[has_answers].sort_values(["score", "doc_id"], ascending=False)
    ranks: dict[str, int] = {}
    for question, passages in run.groupby("query_id"):
        for rank, text in enumerate(passages["text"], start=1):
            if has_answer(text, answers_of[question]):
                ranks[str(question)] = rank
                break
    return ranks
