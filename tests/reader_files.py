"""Miniature files for the tests of the readers."""

MARKDOWN = """---
title: Guide
tags: [graphs, "ranking"]
date: 2020-01-02
---
Before all headings, see [two](sub/b.md#two-words) and [the code](#code).

## Code

```python
x = 1
y = 2
```

See [nowhere](missing.md), [the web](https://example.org), <a id="spot"></a>inline [picture](p.png).

| name | value |
|------|-------|
| one  | 1     |

<div><p id="raw">From HTML</p></div>

#### Skips a level

- first
- second
  > quoted
"""
OTHER_MARKDOWN = """# Other title

## Two words

Text of B: [back](../a.md), [spot](../a.md#spot), [bad](../a.md#zzz), [by name](../a).
"""
HTML = """<!doctype html><html><head><title>Top - the site</title><meta name=keywords content="k, l"></head><body>
<nav>NAVIGATION</nav><header>BANNER</header>
<main><section id="s"><header><h1>Top<a class="headerlink" href="#s">¶</a></h1></header>
<p>Para <a href="b.html#x">b</a> and <b>bo</b>ld <a href="/b.html">c</a>.
<h2>Two</h2><ul><li>one<li>two <p>inner</ul>
<table><tr><th>A<th>B<tr><td><p>1</p><td>2</table>
<pre>code
 more</pre><dl><dt id="d">term<dd>def <a href="#s">up</a></dl><script>SCRIPT</script></section>
<aside>ASIDE</aside></main>
<footer>FOOTER</footer></body></html>
"""
OTHER_HTML = (
    b'<meta charset=latin1><p>caf\xe9 &eacute; <a name=x>anchor</a> <a href="a.html#d">d</a>'
)
NOTEBOOK = """{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
{"cell_type": "markdown", "source": "# Note\\n\\nSee [the other](b.ipynb)."},
{"cell_type": "code", "source": "x = 1\\n# no title", "outputs": ["OUTPUT"]}]}"""
PLAIN_TEXT = "One paragraph\nof two lines.\n\nAnother one.\n\n\n  A third."
FILES: dict[str, dict[str, str | bytes]] = {
    "markdown": {"a.md": MARKDOWN, "sub/b.md": OTHER_MARKDOWN, "p.png": b"\x89PNG"},
    "html": {"a.html": HTML, "b.html": OTHER_HTML},
    "office": {"a.ipynb": NOTEBOOK, "b.ipynb": NOTEBOOK},
}
