"""Mutated files: a reader makes a document of them, or says what is wrong; nothing else happens."""

from __future__ import annotations

import json
import os
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_files import FILES

import pyterrier_graph as ptg
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.options import ReaderOptions
from pyterrier_graph.readers.reading import read_draft

MANY = int(os.environ.get("FUZZ_EXAMPLES", "2000"))  # 10000 take two minutes per reader
OPTIONS = ReaderOptions(3, 8, (), None, 1 << 20, 60)
TOKENS = [
    *(b"<div>", b"</div>", b"<p>", b"<table>", b"<tr>", b"<td>", b"<h1>", b"<h3 id=x>", b"<a href='#x'>", b"<main>"),
    *(b"<pre>", b"<!--", b"-->", b"<![CDATA[", b"<?xml", b"&#0;", b"&#xD800;", b"&nbsp;", b"&x;", b"\xff\xfe", b"\xef"),
    *(b"<sec>", b"</sec>", b"<title>", b"<fig>", b"<label>", b"<ref-list>", b"<xref rid='B1'/>", b"<caption>"),
    *(
        b"# ",
        b"\n## ",
        b"\n\n",
        b"- ",
        b"> ",
        b"```\n",
        b"    ",
        b"| ",
        b"|--|",
        b"[a](b.md#c)",
        b"[",
        b"](",
        b"![",
        b"---\n",
    ),
    *(
        b"=====\n",
        b".. ",
        b"::\n\n   ",
        b".. x::",
        b".. _a: b_\n",
        b":ref:`",
        b"`_",
        b"|a|",
        b"[1]_",
        b".. [1] ",
        b"\t",
    ),
    *(b".. class:: a\n", b".. role:: r\n", b".. default-role:: r\n", b".. py:class:: C\n\n   ", b".. toctree::\n\n   "),
    *(b"*", b"**", b"_", b"`", b"\\", b"\0", b"\r", b"\x0b", b"\xe2\x80\xa8", b"//[", b"http://[", b"%00", b"%p1"),
]
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.just(0), st.integers(0, 40)),  # bytes to remove
        st.one_of(
            st.sampled_from(TOKENS), st.lists(st.sampled_from(TOKENS), max_size=6).map(b"".join), st.binary(max_size=6)
        ),
        st.sampled_from([1, 1, 1, 3, 50]),  # copies to insert
    ),
    min_size=1,
    max_size=8,
)


def mutate(data: bytes, changes: list[tuple[float, int, bytes, int]]) -> bytes:
    for place, removed, inserted, copies in changes:
        start = int(place * len(data))
        data = data[:start] + inserted * copies + data[start + removed :]
    return data


def check(name: str, data: bytes) -> None:
    parse = import_module(f"pyterrier_graph.readers.{name}").parse
    try:
        draft = read_draft(parse, data, "a", OPTIONS)
    except ReaderError as error:
        assert str(error)
        return
    ptg.StructuredDocument("a", tuple(draft.nodes), tuple(draft.links), (), tuple(draft.codes))
    assert len(draft.lines) == len(draft.nodes)
    lines = len(data.decode("utf-16" if data.startswith(b"\xff\xfe") else "utf-8", "replace").splitlines())
    assert all(1 <= line <= lines + 1 for line in draft.lines)
    json.dumps(vars(draft), ensure_ascii=False).encode()
    passages = sum(kind == "passage" for kind, _, _ in draft.nodes)
    assert all(target == "a" or int(target.removeprefix("a%p")) < passages for target in draft.names.values())
    assert all(0 <= node < len(draft.nodes) and names for node, _, names in draft.references)
    assert all(kind == "section" or text.strip() for kind, text, _ in draft.nodes)


def fuzz(name: str, examples: int) -> None:
    seeds = [content.encode() if isinstance(content, str) else content for content in FILES[name].values()]

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.builds(mutate, st.sampled_from(seeds), edits))
    def run(data: bytes) -> None:
        check(name, data)

    run()


@pytest.mark.parametrize("name", FILES)
def test_mutated_files(name: str):
    fuzz(name, 150)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_mutated_files(name: str):
    fuzz(name, MANY)
