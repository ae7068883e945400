"""Hostile bytes, texts, values and JSON, and changes of good ones."""

from __future__ import annotations

import datetime
import decimal
import math
from random import Random
from typing import Any

import numpy as np
import pandas as pd

TOKENS = [
    *(b"<div>", b"</div>", b"<p>", b"<table>", b"<tr>", b"<td>", b"<h1>", b"<h3 id=x>", b"<a href='#x'>", b"<main>"),
    *(b"<pre>", b"<!--", b"-->", b"<![CDATA[", b"<?xml", b"&#0;", b"&#xD800;", b"&nbsp;", b"&x;", b"\xff\xfe", b"\xef"),
    *(b"<sec>", b"</sec>", b"<title>", b"<fig>", b"<label>", b"<ref-list>", b"<xref rid='B1'/>", b"<caption>"),
    *(b"# ", b"\n## ", b"\n\n", b"- ", b"> ", b"```\n", b"    ", b"| ", b"|--|", b"[a](b.md#c)", b"[", b"](", b"!["),
    *(b"---\n", b"=====\n", b".. ", b"::\n\n   ", b".. x::", b".. _a: b_\n", b":ref:`", b"`_", b"|a|", b"[1]_"),
    *(b".. [1] ", b"\t", b".. class:: a\n", b".. role:: r\n", b".. default-role:: r\n", b".. toctree::\n\n   "),
    *(
        b".. py:class:: C\n\n   ",
        b"*",
        b"**",
        b"_",
        b"`",
        b"\\",
        b"\0",
        b"\r",
        b"\x0b",
        b"\xe2\x80\xa8",
        b"//[",
        b"%00",
    ),
    *(b"http://[", b"%p1", b"title: x\n", b"tags: [", b"{a: &b ", b"*b", b"!!python/object:os.system ", b"<<: "),
    *(
        b"<tid>",
        b"</tid>",
        b"<tfile>",
        b"<tfam-docs>",
        b"<tclaims>",
        b"EP-1-A1.xml",
        b"/patent-document/claims/claim[2]",
    ),
    *(b" Q0 ", b",", b" 1", b" nan", b" 1e999", b" -0", b"\xd9\xa3", b"claims 1 to 9999", b"<claim num='99999999'>"),
    *(b"<patent-document>", b"<description lang='EN'>", b"<claims>", b"<abstract>", b"<heading>", b"<patcit ucid='x'>"),
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"<!ENTITY x SYSTEM 'file:///etc/hostname'>", b"xmlns:a='b'"),
]
TEXTS = [
    *(
        "",
        " ",
        "\0",
        "\ud800",
        "a\udcffb",
        "\u2028",
        "\ufeff",
        "\u202e",
        "e\u0301",
        "nan",
        "NaN",
        "1e999",
        "-1",
        "None",
    ),
    *("%p", "%p0", "d0%p0", "d0%p1", "d0%p99", "d0%p-1", "d0%p1.0", "d0%p٣", "d0%p²", "d0%p99999999999999999999"),
    *("d0%s0", "d0%s9", "d0", "d1", "t0", "../../etc/passwd", "/etc/hostname", "a/../../b", "C:\\x", "a\nb", "\t"),
    *(
        "applypipeline:off x",
        "alpha",
        "alpha beta",
        "x" * 5000,
        "alpha " * 2000,
        "%p0" * 500,
        "<script>",
        "{{x}}",
        "%s",
    ),
    *("EP-1000001-A1", "EP-1000001-A1%p0", "/patent-document/claims/claim[1]", "http://[", "EN", "A01B1/00"),
]
NUMBERS = [
    *(0, 1, -1, 2, 7, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**70), 10**18, 10**400),
    *(0.5, -0.0, 1e-320, 1e300, 1e39, math.nan, math.inf, -math.inf, 1.0000001),
]
JSON = [None, True, False, *NUMBERS, *TEXTS, [], {}, [[]], [None], [1, 2], {"a": 1}, {"": None}, [0] * 1000]
VALUES = [
    *(None, True, False, *NUMBERS, *TEXTS, [], [1], ["d0%p0"], (), (1, 2), {}, {"a": 1}, set(), b"x", b"", 1j),
    *(np.float32("nan"), np.int8(1), np.str_("d0%p0"), np.datetime64("NaT"), np.zeros(3), np.zeros((2, 2)), np.nan),
    *(pd.NA, pd.NaT, pd.Timestamp("2020-01-01"), decimal.Decimal("NaN"), datetime.date(2020, 1, 1), object(), range(3)),
]


def changed_bytes(random: Random, data: bytes) -> bytes:
    """Bytes with up to eight changes: parts removed, inserted, repeated, or moved."""
    for _ in range(random.randint(1, 8)):
        start, removed = random.randrange(len(data) + 1), random.choice([0, random.randint(0, 40)])
        kind = random.random()
        if kind < 0.45:
            new = b"".join(random.choices(TOKENS, k=random.choice([1, 1, 1, 2, 6])))
        elif kind < 0.65:
            new = random.randbytes(random.randint(0, 6))
        elif kind < 0.85:
            other = random.randrange(len(data) + 1)
            new = data[other : other + random.randint(0, 200)]
        else:
            new = random.choice(TEXTS).encode("utf-8", "surrogatepass")
        copies = random.choice([1, 1, 1, 3, 50])
        if random.random() < 0.002:
            copies = 20_000
        data = data[:start] + new * copies + data[start + removed :]
        if len(data) > 2_000_000:
            data = data[:2_000_000]
    return data


def changed_text(random: Random, text: str) -> str:
    """A text with some changes."""
    return changed_bytes(random, text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")


def changed_json(random: Random, value: Any, pool: list[Any] = JSON) -> Any:
    """A value of JSON with one to three changes somewhere inside."""
    for _ in range(random.randint(1, 3)):
        value = _changed(random, value, pool)
    return value


def _changed(random: Random, value: Any, pool: list[Any]) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        name, kind = random.choice([*value]), random.random()
        if kind < 0.12:
            return {other: inner for other, inner in value.items() if other != name}
        if kind < 0.2:
            return value | {random.choice(TEXTS): random.choice(pool)}
        if kind < 0.25:
            return {random.choice(TEXTS) if other == name else other: inner for other, inner in value.items()}
        return value | {name: _changed(random, value[name], pool)}
    if isinstance(value, (list, tuple)) and value and random.random() < 0.85:
        place, kind = random.randrange(len(value)), random.random()
        new = [*value]
        if kind < 0.15:
            del new[place]
        elif kind < 0.25:
            new.insert(place, new[random.randrange(len(new))])
        elif kind < 0.3:
            new = new * random.choice([2, 100])
        else:
            new[place] = _changed(random, new[place], pool)
        return type(value)(new) if type(value) in (list, tuple) else new
    if isinstance(value, str) and random.random() < 0.3:
        return changed_text(random, value)
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.4:
        return value + random.choice([-1, 1, 10, 1 << 40])
    if random.random() < 0.02:
        nested: Any = []
        for _ in range(random.choice([10, 300])):
            nested = [nested]
        return nested
    return random.choice(pool)
