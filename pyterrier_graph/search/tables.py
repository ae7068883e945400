"""Tables of rows with a text, in Lance: only rows that have changed are written, and each table has versions.

A :class:`~pyterrier_graph.GraphIndex` reads its tables at the versions that its ``pt_meta.json`` names, and removes the
files of later versions, which a killed process has left. Lance's full-text index of the texts computes BM25.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from importlib.util import find_spec, module_from_spec
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import Found, Retrieves, check_count, is_unicode

if TYPE_CHECKING:
    from lancedb.table import Table

ROWS_AT_ONCE = 8192
KEYS_AT_ONCE = 1000  # in a condition
KEPT = timedelta(days=36_500)  # Lance must not delete versions: the last complete one may be old
CLIENT = "lance_namespace_urllib3_client"
Row = tuple[str, str]  # docno and text
UNSPACED = re.compile(  # Thai to Lao, Burmese, Khmer, kana and Chinese characters
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def spaced(text: str) -> str:
    """A text whose scripts without spaces are split into overlapping pairs of characters, as CJK analyzers do."""
    if text.isascii():
        return text
    pairs = lambda run: " ".join(map("".join, zip(run, run[1:], strict=False))) or run  # noqa: E731
    return UNSPACED.sub(lambda found: f" {pairs(found[0])} ", text)


def _lancedb() -> Any:
    """LanceDB without the client of remote catalogs, whose import takes two thirds of the time of its first module."""
    if not {CLIENT, "lancedb"}.intersection(sys.modules) and (spec := find_spec(CLIENT)):
        sys.modules[CLIENT] = module_from_spec(
            spec
        )  # its modules can be imported, it is not run itself
        with suppress(ImportError):  # of a version that needs it
            import lancedb
        del sys.modules[CLIENT]  # whoever needs it imports it
    import lancedb

    return lancedb


def open_table(folder: Path, name: str, version: int) -> Table:
    """A table as it was at a version."""
    table = _lancedb().connect(folder).open_table(name)
    table.checkout(version)
    return table


def write_table(
    folder: Path,
    name: str,
    version: int | None,
    rows: Iterable[Row],
    *,
    keep_others: bool = False,
    deleted: Iterable[str] = (),
    searched: bool = False,
) -> int:
    """Writes the rows that differ from those of a version, and removes others; returns the number of the new version.

    Memory holds 24 bytes for each row of the table, and some rows. With ``keep_others``, rows of the table that are not
    among the given ones stay, except the ``deleted`` docnos. A table that is ``searched`` has a full-text index. Raises
    ValueError if a docno comes twice.
    """
    import pyarrow as pa

    database = _lancedb().connect(folder)
    types = pa.schema(
        {"key": pa.int64(), "digest": pa.int64(), "docno": pa.string(), "text": pa.string()}
    )
    if version is None:
        rmtree(folder / f"{name}.lance", ignore_errors=True)  # what a killed process has left
        table = database.create_table(name, schema=types)
    else:
        table = database.open_table(name)
        if table.version != version:
            table.checkout(version)
            table.restore()
    columns = table.search().select(["key", "digest"]).to_arrow()
    order = np.argsort(columns["key"].to_numpy())
    keys, digests = (columns[name].to_numpy()[order] for name in ("key", "digest"))
    seen = [keys[:0]]
    remaining = iter(rows)
    while part := [*islice(remaining, ROWS_AT_ONCE)]:
        docnos, texts = zip(*part, strict=True)
        texts = tuple(map(spaced, texts)) if searched else texts
        block = pa.table([_hashes(docnos), _hashes(texts), [*docnos], [*texts]], schema=types)
        key, digest = (block[column].to_numpy() for column in ("key", "digest"))
        known = np.isin(key, keys)
        changed = known.copy()
        changed[known] = digests[np.searchsorted(keys, key[known])] != digest[known]
        first = np.isin(
            np.arange(len(key)), np.unique(key, return_index=True)[1]
        )  # a second one is refused below
        if (changed & first).any():
            table.merge_insert("key").when_matched_update_all().execute(
                block.filter(pa.array(changed & first))
            )
        if not known.all():
            table.add(block.filter(pa.array(~known)))
        seen.append(key)
    values, counts = np.unique(np.concatenate(seen), return_counts=True)
    if (counts > 1).any():
        twice = (
            table.search().where(f"key = {values[counts > 1][0]}").limit(1).to_arrow()["docno"][0]
        )
        raise ValueError(f"docno {twice.as_py()!r} comes twice")
    gone = _hashes(deleted)
    if not keep_others:
        gone = np.concatenate([gone, np.setdiff1d(keys, values)])
    for start in range(0, len(gone), KEYS_AT_ONCE):
        table.delete(f"key IN ({', '.join(map(str, gone[start : start + KEYS_AT_ONCE]))})")
    if table.version != version:
        table.optimize(cleanup_older_than=KEPT)
        if searched:
            from lancedb.index import FTS

            # not updated, since an updated index still counts the words of rows that are gone
            table.create_index(
                "text", config=FTS(language="English", stem=True, remove_stop_words=True)
            )
    return table.version


def read_texts(table: Table) -> Iterator[Row]:
    """The docnos and texts of a table, in the order of its rows."""
    for batch in table.search().select(["docno", "text"]).to_batches(ROWS_AT_ONCE):
        yield from zip(batch["docno"].to_pylist(), batch["text"].to_pylist(), strict=True)


def _hashes(texts: Iterable[str]) -> np.ndarray:
    """Digests of texts as whole numbers of 64 bits."""
    joined = b"".join([blake2b(text.encode(), digest_size=8).digest() for text in texts])
    return np.frombuffer(joined, dtype="<i8")


class FullText(Retrieves, pt.Transformer):
    """BM25 over the texts of a table, by Lance's full-text index (k1 = 1.2, b = 0.75; English stems, no stop words).

    Text without spaces, such as Chinese, Japanese or Thai, is searched by pairs of characters. ``label`` is the name in
    explanations.

    Columns in: ``qid, query``. Columns out: ``qid, query, docno, score, rank``.
    """

    schematic = {"label": "BM25", "help_url": "https://pypi.org/project/pyterrier-graph/"}

    def __init__(
        self, folder: Path, name: str, version: int, num_results: int = 1000, label: str = "BM25"
    ) -> None:
        check_count("num_results", num_results)
        self.folder, self.name, self.version, self.num_results = folder, name, version, num_results
        self.label = label
        self._open: dict[
            int, Table
        ] = {}  # the table at its version, for all copies with other numbers of results

    def __repr__(self) -> str:
        return f"BM25({str(self.folder.parent)!r}, {self.num_results})"

    def __str__(self) -> str:
        return self.label

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_open": {}}  # worker processes open the table again

    def _found(self, topics: pd.DataFrame) -> Found:
        if not all(map(is_unicode, topics["query"])):
            raise ValueError(f"{self}: a query is not valid Unicode")
        rankings = [self._ranking(query) for query in topics["query"]]
        counts = [len(ranking) for ranking in rankings]
        docnos = np.array(
            [docno for ranking in rankings for docno in ranking["docno"].to_pylist()], dtype=object
        )
        scores = np.concatenate(
            [np.empty(0), *(ranking["_score"].to_numpy() for ranking in rankings)]
        )
        return Found(np.repeat(np.arange(len(counts)), counts), docnos, scores, {})

    def _ranking(self, query: str) -> Any:
        """The docnos and scores of the best passages, a table of Arrow."""
        try:
            if self.version not in self._open:
                self._open[self.version] = open_table(self.folder, self.name, self.version)
            words: Any = _lancedb().query.MatchQuery
            search = self._open[self.version].search(words(spaced(query), "text"), query_type="fts")
            return (
                search.select(["docno", "_score"]).limit(min(self.num_results, 1 << 31)).to_arrow()
            )
        except (ValueError, RuntimeError) as error:
            if (self.folder / f"{self.name}.lance").is_dir():
                raise
            message = f"the index at {str(self.folder.parent)!r} was removed after it had been opened, or replaced"
            raise FileNotFoundError(f"{message}: open it again") from error
