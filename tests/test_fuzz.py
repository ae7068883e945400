"""Hostile input for everything that reads files, records, frames or artifacts, made by hypothesis.

Allowed is a result, and an error with a message that a ``raise`` statement of this package or of PyTerrier makes.
``FUZZ_EXAMPLES=2000 python -m pytest -m "" tests/test_fuzz.py`` makes so many inputs for each test.
"""

from __future__ import annotations

import dis
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_files import FILES, PLAIN_TEXT

import pyterrier_graph as ptg
from pyterrier_graph.documents.document import StructuredDocument
from pyterrier_graph.documents.readers.files import FORMATS, read_file
from pyterrier_graph.graphs.memory_graph import MemoryGraph

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 0))
OURS = (
    "pyterrier_graph",
    "pyterrier",
    "pyterrier_alpha",
    "pyterrier_dr",
    "ir_datasets",
    "ir_measures",
)
ALLOWED = (ValueError, TypeError, KeyError, OSError)


def fuzz(few: int = 10) -> Callable[[Any], Any]:
    """Settings: few examples, the same ones in every run, or as many others as the environment says."""
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )


def is_allowed(error: BaseException) -> bool:
    """Whether an error is one that a ``raise`` statement of this package or PyTerrier made, with a message."""
    if isinstance(error, pydantic.ValidationError):
        return bool(str(error))
    if (
        not isinstance(error, ALLOWED)
        or isinstance(error, UnicodeError)
        or not str(error)
        or not error.__traceback__
    ):
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    code = dis.get_instructions(trace.tb_frame.f_code)
    return (
        package in OURS
        and next(step for step in code if step.offset == trace.tb_lasti).opname == "RAISE_VARARGS"
    )


@contextmanager
def allowed_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            if not is_allowed(error):
                raise


# --- values, and changes of good input

TOKENS = (
    r"""<div> </div> <p> <table> <tr> <td> <h1> <a·href='#x'> <main> <pre> <!-- --> <![CDATA[ <?xml &#0; &#xD800; &nbsp;
&x;
<sec> </sec> <title> <fig> <label> <ref-list> <xref·rid='B1'/> <caption> --- === [a](b.md#c) [ ]( ![ |--|
|a| * ** _ ` \ //[ %00 http://[ %p1 tags:·[ {a:·&b *b <<:· !!python/object:a <tid> <tfile> <claims> <heading> Q0
<patcit·ucid='x'> nan 1e999 <!ENTITY·x·SYSTEM·'file:///etc/hostname'> &x;""".replace("·", " ")
    .encode()
    .split(b"\n")
)
TOKENS = [token for line in TOKENS for token in line.split(b" ")]
TOKENS += [b"\n", b"\n\n", b"\n## ", b"```\n", b"    ", b"\0", b"\n- ", b"\n> ", b"\xff\xfe"]
TOKENS += [b"---\n", b"a: b\n"]
TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "\u2028",
    "nan",
    "1e999",
    "-1",
    "%p0",
    "d0%p0",
    "d0%p99",
    "d0%p-1",
]
TEXTS += ["d0%p99999999999999999999", "d0%s0", "d0", "t0", "../../etc/passwd", "a\nb", "alpha"]
TEXTS += ["x" * 5000, "alpha " * 2000, "<script>", "EP-1000001-A1", "EN"]
NUMBERS = [0, 1, -1, 7, 2**31, 2**64, 10**400, 0.5, -0.0, 1e300, math.nan, math.inf, -math.inf]
JSON = [None, True, *NUMBERS, *TEXTS, [], {}, [[]], [1, 2], {"a": 1}, {"": None}, [0] * 1000]
VALUES = [*JSON, ["d0%p0"], set(), b"x", 1j, np.float32("nan"), np.int8(1), np.zeros((2, 2)), pd.NA]
values = st.sampled_from(VALUES) | st.text(max_size=8) | st.integers() | st.floats()
json_values = st.sampled_from(JSON) | st.text(max_size=8) | st.integers() | st.floats()


@st.composite
def changed_bytes(draw: Any, contents: Any) -> bytes:
    """Bytes of which parts are removed, replaced, or repeated."""
    content = draw(st.sampled_from(contents))
    data = content.encode() if isinstance(content, str) else content
    for _ in range(draw(st.integers(1, 8))):
        start, removed = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        new = draw(
            st.sampled_from(TOKENS)
            | st.binary(max_size=6)
            | st.sampled_from([data[start : start + 200], data[:200]])
        )
        data = (
            data[:start]
            + new * draw(st.sampled_from([1, 1, 1, 3, 50, 500]))
            + data[start + removed :]
        )
    return data[:100_000]


@st.composite
def changed_json(draw: Any, value: Any, pool: Any = json_values) -> Any:
    """A value of JSON with a change somewhere inside."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        name, kind = draw(st.sampled_from([*value])), draw(st.integers(0, 5))
        if kind == 0:
            return {other: inner for other, inner in value.items() if other != name}
        return value | {
            draw(st.sampled_from(TEXTS)) if kind == 1 else name: draw(
                changed_json(value[name], pool)
            )
        }
    if isinstance(value, list | tuple) and value and draw(st.integers(0, 9)):
        place, kind = draw(st.integers(0, len(value) - 1)), draw(st.integers(0, 5))
        new = [draw(changed_json(value[place], pool))][: kind != 0]
        return [*value[:place], *new, *value[place + (kind != 1) :]]
    return draw(pool)


# --- files and records

EXAMPLE_FILES = {**FILES, "plain_text": {"a.txt": PLAIN_TEXT}}
RECORDS: list[dict[str, Any]] = [
    {"docno": "d0", "title": "alpha", "text": "beta gamma\n\ndelta", "codes": ["a", "b"]},
    {
        "docno": "d0",
        "nodes": [
            ["section", "alpha", -1],
            ["passage", "beta", 0],
            ["section", "", 0],
            ["passage", "gamma", 2],
        ],
        "links": [["internal", 3, 1]],
        "references": [["external", 0, "d1"]],
        "codes": ["a"],
        "passage_ids": ["x", "y"],
    },
    {"docno": "d0", "title": "alpha", "sections": [["one", "text"], ["two", ["a", "b"]]]},
    {"docno": "d0", "title": "alpha", "body": "one\n\ntext"},
]


@pytest.mark.parametrize("name", FORMATS)
def test_files(name: str, tmp_path: Path) -> None:
    docno = f"a{FORMATS[name][0]}"

    @fuzz(10)
    @given(changed_bytes([*EXAMPLE_FILES[name].values()]))
    def check(data: bytes) -> None:
        (tmp_path / docno).write_bytes(data)
        draft = read_file(tmp_path, docno, [name], 3, 8)
        if isinstance(draft, str):
            assert draft
            return
        StructuredDocument(docno, (*draft.nodes,), (*draft.links,))
        assert len(draft.lines) == len(draft.nodes)
        assert all(1 <= line < 2**31 for line in draft.lines)
        json.dumps(vars(draft), ensure_ascii=False).encode()
        passages = sum(kind == "passage" for kind, _, _ in draft.nodes)
        assert all(
            id == docno or int(id.removeprefix(f"{docno}%p")) < passages
            for id in draft.names.values()
        )
        assert all(0 <= node < len(draft.nodes) and names for node, _, names in draft.references)

    check()


@fuzz(60)
@given(
    st.sampled_from(RECORDS).flatmap(lambda record: changed_json(record, values)),
    st.sampled_from([1, 120]),
)
def test_records(record: Any, words: int) -> None:
    with allowed_errors():
        made = MemoryGraph([ptg.read_record(record, passage_words=words)])
        made.texts(made.nodes_of(made.ids_of(made.passage_nodes)), titles=True)
