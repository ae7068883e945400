"""The documents of a folder, as a corpus that can be read again and again."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from os.path import exists
from pathlib import Path
from typing import Any

from pyterrier_graph.checks import check_count, check_type
from pyterrier_graph.documents import PASSAGE, Reference
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.options import Parse, ReaderOptions
from pyterrier_graph.readers.parallel import in_order
from pyterrier_graph.readers.reading import Result, read_file
from pyterrier_graph.readers.spool import Spool
from pyterrier_graph.readers.walking import FILES, Found, find
from pyterrier_graph.warning_categories import DataWarning

EXAMPLES = 10
Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class DocumentFiles:
    """The documents of files, in the order of their paths; each iteration reads the files anew.

    All files are read before the first document comes, since links may lead to later files. In memory there are the
    paths, and one document at a time; the others wait in a temporary file.

    Each document is a record with ``docno``, ``title``, ``text``, ``nodes``, ``links``, ``references`` and ``codes``,
    as :meth:`DocumentGraph.index <pyterrier_graph.DocumentGraph.index>` and the indexers of PyTerrier take it, and
    with ``lines`` (per node the line of the file where the node begins) and ``attributes`` (other fields, by name).

    Attributes:
        report: What the last complete iteration found: numbers of ``files`` and ``documents``, the reasons of
            ``broken`` files by name, the names of ``empty`` files, the first ``links_to_nowhere``, and what else was
            ``found``, by name. The summary of a graph has it as ``source``.
    """

    def __init__(
        self,
        files: Files,
        parse: Parse,
        suffixes: Iterable[str],
        options: ReaderOptions,
        *,
        workers: int | None = None,
        strict: bool = False,
        verbose: bool = True,
    ) -> None:
        check_type("files", files, (str, os.PathLike, Iterable), FILES)
        if workers is not None:
            check_count("workers", workers)
        check_type("suffixes", suffixes, (tuple, list, set, frozenset), "endings of names, such as ('.md', '.txt')")
        self.files = files if isinstance(files, str | os.PathLike) else [*files]
        self.parse = parse
        self.suffixes = tuple(suffix.lower() for suffix in suffixes)
        self.options = options
        self.workers = workers
        self.strict = strict
        self.verbose = verbose
        self.report: dict[str, Any] = {}
        find(self.files, ())  # an error comes at once

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self.files)[:60]}>"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyterrier as pt

        found = self._find()
        counts, broken, empty, nowhere = found.counts, dict(found.broken), [], list[str]()
        documents = 0
        with Spool() as spool:
            total = len(found.paths)
            progress = {"desc": "reading files", "total": total, "unit": "file", "delay": 1}
            for result in pt.tqdm(self._results(found), **progress, disable=not self.verbose):
                counts.update(result.counts)
                if result.reason and self.strict:
                    raise ReaderError(f"{str(found.root / result.docno)!r}: {result.reason}")
                if result.reason:
                    broken[result.docno] = result.reason
                elif not result.body:
                    empty.append(result.docno)
                else:
                    counts["names that come twice"] += spool.add(result.body, result.names)
                    documents += 1
            for body in spool.drafts():
                yield _record(json.loads(body), spool, found.root, counts, nowhere)
        self.report = {
            "files": len(found.paths),
            "documents": documents,
            "broken": broken,
            "empty": empty,
            "links_to_nowhere": nowhere,
            "found": {name: count for name, count in sorted(counts.items()) if count},
        }
        if broken:
            name, reason = next(iter(broken.items()))
            message = f"{len(broken)} of {total} files were not read, the first is {name}: {reason}"
            advice = "report['broken'] has all of them; strict=True makes it an error"
            warnings.warn(f"{message}. {advice}", DataWarning, stacklevel=2)

    def _find(self) -> Found:
        return find(self.files, self.suffixes)

    def _results(self, found: Found) -> Iterator[Result]:
        read = partial(read_file, self.parse, found.root, self.options)
        return in_order(read, found.paths, self.workers, partial(Result, reason="its process died"))


def _record(
    draft: dict[str, Any], spool: Spool, root: Path, counts: Counter[str], nowhere: list[str]
) -> dict[str, Any]:
    """The document of a draft: its references are resolved."""
    references = []
    for node, address, names in draft["references"]:
        match spool.find(names):
            case position, target:
                references.append(Reference("external", node, target))
                counts["references between documents"] += 1
                if address and names[0].startswith(f"{address}#") and position >= len(names) // 2:
                    counts["links to no anchor of their target"] += 1
            case None if not address:
                counts["references to documents that are not here"] += 1
            case None if any(_exists(root, name) for name in names):
                counts["links to files that are no documents"] += 1
            case None:
                counts["links to nowhere"] += 1
                references.append(Reference("external", node, address))  # the graph counts it as unresolved
                if len(nowhere) < EXAMPLES:
                    nowhere.append(f"{draft['docno']}: {address}")
    counts["links within documents"] += len(draft["links"])
    nodes = draft["nodes"]
    text = "\n".join(text for kind, text, _ in nodes if kind == PASSAGE)
    return draft | {"title": nodes[0][1], "text": text, "references": references}


def _exists(root: Path, address: str) -> bool:
    try:
        return exists(root / address)
    except ValueError:
        return False
