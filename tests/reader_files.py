"""Miniature files for the tests of the readers."""

from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

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
RST = """:tags: u, v

=====
Title
=====

.. toctree::
   :maxdepth: 2

   sub/other
   Named <sub/other>

.. _lab:

Section
-------

A paragraph with :ref:`other-label`, :func:`~pkg.mod.fun`, :doc:`sub/other`, :foo:`bar` and `Section`_.

.. unknown:: argument
   :opt: 1

   Content of it.

.. code-block:: python

   x = 1

.. note:: careful

+---+---+
| a | b |
+---+---+
| c | d |
+---+---+
"""
OTHER_RST = """Other
=====

.. module:: pkg.mod

.. _other-label:

Deep
----

.. py:function:: fun(x)

   Does it. Back to :ref:`lab`, `site <https://example.org>`_, |undefined|.

.. include:: ../index.rst

.. raw:: html

   <p>RAW</p>
"""
PLAIN_TEXT = "One paragraph\nof two lines.\n\nAnother one.\n\n\n  A third."
FILES: dict[str, dict[str, str | bytes]] = {
    "markdown": {"a.md": MARKDOWN, "sub/b.md": OTHER_MARKDOWN, "p.png": b"\x89PNG"},
    "html": {"a.html": HTML, "b.html": OTHER_HTML},
    "rst": {"index.rst": RST, "sub/other.rst": OTHER_RST},
}


def word(body: str, target: str = "b.docx", head: str = "") -> bytes:
    """A Word file; its relation ``r1`` is a link to the target."""
    office = "http://schemas.openxmlformats.org"
    names = f'xmlns:w="{office}/wordprocessingml/2006/main" xmlns:r="{office}/officeDocument/2006/relationships"'
    kind = f"{office}/officeDocument/2006/relationships"
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="{style}"><w:name w:val="{name}"/></w:style>'
        for style, name in [("T", "Title"), *((f"H{n}", f"heading {n}") for n in range(1, 10))]
    )
    parts = {
        "word/document.xml": f"{head}<w:document {names}><w:body>{body}</w:body></w:document>",
        "word/styles.xml": f"<w:styles {names}>{styles}</w:styles>",
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{office}/package/2006/relationships">'
        f'<Relationship Id="r1" Type="{kind}/hyperlink" Target="{target}" TargetMode="External"/>'
        f'<Relationship Id="r2" Type="{kind}/styles" Target="styles.xml"/></Relationships>',
    }
    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as file:
        for name, text in parts.items():
            file.writestr(name, text)
    return out.getvalue()


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of a Word file."""
    of = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{of}<w:r><w:t>{text}</w:t></w:r></w:p>"


def pdf(*pages: str) -> bytes:
    """A PDF with a line on each page."""
    out = BytesIO()
    with PdfPages(out) as file:
        for text in pages:
            figure = Figure()
            figure.text(0.1, 0.5, text)
            file.savefig(figure)
    return out.getvalue()


LINKED = '<w:p><w:hyperlink r:id="r1"><w:r><w:t>the other</w:t></w:r></w:hyperlink></w:p>'
FILES["office"] = {
    "a.docx": word(paragraph("Guide", "H1") + paragraph("A &lt;b&gt; paragraph.") + LINKED),
    "b.docx": word(paragraph("Other text.")),
}
