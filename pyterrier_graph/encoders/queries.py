"""The texts of the queries of a frame."""

import warnings
from collections.abc import Sequence

import pandas as pd

from pyterrier_graph.checks import is_unicode
from pyterrier_graph.warning_categories import QualityWarning

REWRITTEN = "applypipeline:"  # how Terrier's query language begins, which RM3, Bo1 and SDM write


def query_texts(run: pd.DataFrame) -> pd.Series:
    """The text of each query, by qid in the order of the frame; it may stand in some of the query's rows only.

    Raises ValueError if a query has no text. Warns as :func:`warn_of_rewritten`.
    """
    texts = run.groupby("qid", sort=False)["query"].first()
    for qid, text in texts.items():
        if not isinstance(text, str) or not text.strip() or not is_unicode(text):
            raise ValueError(f"query {qid!r} has no text: {text!r:.60}")
    warn_of_rewritten(texts.tolist())
    return texts


def warn_of_rewritten(texts: Sequence[str]) -> None:
    """Warns if queries are in Terrier's query language, which an encoder reads as words.

    The warning of the same queries is the same in all transformers of a pipeline, so Python shows it once.
    """
    rewritten = next((text for text in texts if text.startswith(REWRITTEN)), None)
    if rewritten is not None:
        warnings.warn(
            f"queries such as {rewritten[:40]!r} are in Terrier's query language, which an encoder reads as words: put "
            "pt.rewrite.reset() before it",
            QualityWarning,
            stacklevel=1,
        )
