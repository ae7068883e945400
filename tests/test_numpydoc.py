"""The embedded corpus: reading sources, cutting docstrings, documents, queries, relevance, and how it is found."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import ir_datasets
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyterrier_graph.datasets import numpydoc, provider
from pyterrier_graph.datasets.docstring_corpus import (
    DocstringCorpus,
    VerbatimCopies,
    build_corpus,
    words,
)
from pyterrier_graph.datasets.docstrings import parse_docstring, plain_text
from pyterrier_graph.datasets.sources import DocumentedObject, read_package
from pyterrier_graph.documents.document import Link, Reference

TOY = {
    "__init__.py": """
        from ._impl import norm, Shape, Square, twice as doubled
        from .tools import *
        from ._impl import unit
        raise RuntimeError("must not be imported")
        """,
    "_impl.py": '''
        from ._base import Base

        def norm(x, order):
            """
            norm(x, order)

            Length of a vector, as a single number.

            Uses `order` to choose how, see Notes.

            Parameters
            ----------
            x : array
                The vector whose length it is.
            order, kind : int, optional
                Which norm of `x` [1]_ to take.

            Returns
            -------
            float
                The length of the vector `x`.

            See Also
            --------
            Square.area : How much surface a square has.
            toy.tools.scale : Makes all entries larger or smaller.
            elsewhere.function : Something that is not here.

            Notes
            -----
            The default is the square root of the sum of squares::

                sqrt(sum(x ** 2))

            where the sum goes over all entries.

            Length of a vector, as a single number; that is said once more.

            References
            ----------
            .. [1] Somebody, "On norms", 1901.
            """

        def twice(x):
            """Twice of what is given.

            Adds the value to itself once, and hands back what comes out of it.
            """

        def also_twice(x):
            """Twice of what is given.

            Adds the value to itself once,  and hands back what comes out of it.
            """

        def undocumented(x):
            return x

        class Shape(Base):
            """A shape in the plane."""

        class Square(Shape):
            """Square with four equal sides.

            All its corners are right angles, and its diagonals are equally long.
            """

            @property
            def area(self):
                """Area of this square.

                It is the side's length multiplied by itself, in square units.
                """

            def _hidden(self):
                """Nobody should ever find this text in the corpus, since it is private."""

        class _Unit:
            """The unit of all lengths in here.

            There is only one object of this class, so that users know it by the name of that.
            """

        unit = _Unit()
        ''',
    "_base.py": '''
        class Base:
            def move(self, by):
                """Move the shape elsewhere.

                The shape itself stays what it is, a moved copy of it comes back.
                """
        ''',
    "tools.py": '''
        from ._impl import also_twice, undocumented

        __all__ = ["scale", "also_twice"]

        def scale(x, factor):
            """Multiply all entries by a factor.

            The entries become larger or smaller by this; an empty list stays empty.

            See Also
            --------
            norm : Multiply all entries by a factor.
            """

        def left_out():
            """Not in the list of names that this module offers, although it is public and long enough."""
        ''',
    "_add_newdocs.py": '''
        add_newdoc("toy._compiled", "fast", """
            fast(x, /)
            --

            Quick version in compiled code.

            There is no source of it that could be read, only this text about it.
            """)
        add_newdoc("toy._compiled", "fast", ("speed", """
            How fast it is.

            Measured in entries per second, on the machine that it was compiled on."""))
        ''',
    "compiled.py": "from ._compiled import fast as quick\n__all__ = ['quick']\n",
    "tests/__init__.py": "",
    "tests/test_norm.py": '''
        def helper():
            """Text of a test.

            It is long enough for a document, but must not be found by anybody.
            """
        ''',
}


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    root = tmp_path_factory.mktemp("packages")
    for name, source in TOY.items():
        path = root / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        yield


@pytest.fixture(scope="module")
def toy_objects(packages: None) -> list[DocumentedObject]:
    return read_package("toy")


@pytest.fixture(scope="module")
def toy(packages: None) -> DocstringCorpus:
    return build_corpus(["toy"])


@pytest.fixture(scope="module")
def numpy_corpus() -> DocstringCorpus:
    return numpydoc.load_corpus("numpy")


def dataset(name: str) -> ir_datasets.Dataset:
    provider.register()
    return ir_datasets.load(f"pyterrier-graph/numpydoc/{name}")


# reading sources


def test_public_names_are_found_through_imports_lists_instances_and_bases(
    toy: DocstringCorpus,
) -> None:
    assert "toy" not in sys.modules
    assert (
        [*toy.documents]
        == [
            "toy.Shape.move",  # defined in a private base class
            "toy.Square",
            "toy.Square.area",
            "toy.also_twice",  # offered by tools.__all__, in the package by *; first in the alphabet of the duplicates
            "toy.compiled.quick",
            "toy.compiled.quick.speed",
            "toy.norm",
            "toy.scale",
            "toy.unit",
        ]
    )


def test_an_object_has_all_its_public_names(toy_objects: list[DocumentedObject]) -> None:
    names = {documented.name: documented.names for documented in toy_objects}
    assert names["toy.norm"] == ("toy.norm",)
    assert names["toy.Shape.move"] == ("toy.Shape.move", "toy.Square.move")
    assert names["toy.scale"] == ("toy.scale", "toy.tools.scale")
    assert {
        documented.module
        for documented in toy_objects
        if documented.name.startswith("toy.compiled")
    } == {"toy.compiled"}


def test_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        read_package("no_such_package")


# cutting docstrings


@pytest.mark.parametrize(
    "signature",
    [
        "y = norm(x,\n         order=None)\n\n",
        "norm(x, order=(1, 2), *, out=None) -> ndarray\n\n",
        "a.norm($self, /, order=2)\n--\n\n",
    ],
)
def test_signature_is_no_summary(signature: str) -> None:
    docstring = parse_docstring(
        f"{signature}Length of a vector (the\nEuclidean one).\n\nMore about it than that."
    )
    assert docstring.summary == "Length of a vector (the Euclidean one)."
    assert [passage.text for passage in docstring.passages] == ["More about it than that."]


def test_long_first_paragraph_gives_its_first_sentence() -> None:
    docstring = parse_docstring(
        "Short sentence that comes first. " + "Then another one follows it. " * 6
    )
    assert docstring.summary == "Short sentence that comes first."
    assert docstring.passages[0].text.count("Then another one") == 6
    assert parse_docstring("word " * 31).summary == ""
    assert parse_docstring("word " * 31).passages[0].text.count("word") == 31
    assert parse_docstring("It is the same as:\n\n    other(x)\n").summary == ""


def test_paragraphs_keep_what_belongs_to_them() -> None:
    docstring = parse_docstring(
        textwrap.dedent("""\
        Summary line of it.

        Notes
        -----
        A paragraph that stands alone.

        A formula comes with its text:

        .. math:: a = b

        where a is what it is.

        - first item
        - second item

        Heading

        A paragraph of its own.

        Examples
        --------
        An example of its use.

        >>> f(1)
        2
        """)
    )
    assert [passage[:2] for passage in docstring.passages] == [
        ("Notes", "A paragraph that stands alone."),
        (
            "Notes",
            "A formula comes with its text: a = b where a is what it is. - first item - second item",
        ),
        ("Notes", "Heading A paragraph of its own."),
        ("Examples", "An example of its use. >>> f(1) 2"),
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("See :func:`~numpy.linalg.norm`, ``x`` and `y`.", "See numpy.linalg.norm, x and y."),
        ("The :ref:`user guide <guide>` and `a page <http://x.y>`_.", "The user guide and a page."),
        (".. versionadded:: 1.2.0", ""),
        (".. deprecated:: 1.2\n   Use other.", "Use other."),
        (".. code-block:: python\n   :linenos:\n\n   f(x)", "f(x)"),
        ("An *emphasis*, a **strong** one, *args and **kwargs; 2 * a * b.",
         "An emphasis, a strong one, *args and **kwargs; 2 * a * b."),
        ("It says [1]_.\n\n.. [1] A book.", "It says [1]. [1] A book."),
        ("===  ===\na    b\n===  ===", "a b"),
    ],
)  # fmt: skip
def test_markup_goes(markup: str, text: str) -> None:
    assert plain_text(markup) == text


# verbatim copies


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=3, max_size=5), max_size=6),
    st.text("aBcD ,.", max_size=60),
)
def test_no_copy_is_left(lines: list[list[str]], text: str) -> None:
    copies = VerbatimCopies(map(tuple, lines))
    left = words(copies.remove(text))
    for line in map(tuple, lines):
        assert all(left[start : start + len(line)] != line for start in range(len(left)))
    if not list(copies.find(text)):
        assert copies.remove(text) == text


# documents


def test_document_of_a_docstring(toy: DocstringCorpus) -> None:
    document = toy.documents["toy.norm"]
    nodes = [(node.kind, node.text, node.parent) for node in document.nodes]
    assert nodes == [
        ("section", "toy.norm", -1),
        ("passage", "Uses order to choose how, see Notes.", 0),
        ("section", "Parameters", 0),
        ("passage", "x : array The vector whose length it is.", 2),
        ("passage", "order, kind : int, optional Which norm of x [1] to take.", 2),
        ("section", "Returns", 0),
        ("passage", "float The length of the vector x.", 5),
        ("section", "Notes", 0),
        ("passage", "The default is the square root of the sum of squares: sqrt(sum(x ** 2)) "
                    "where the sum goes over all entries.", 7),
        ("passage", "that is said once more.", 7),
        ("section", "References", 0),
        ("passage", '[1] Somebody, "On norms", 1901.', 10),
    ]  # fmt: skip
    assert set(document.links) == {
        Link("internal", 1, 4),  # `order`
        Link("internal", 1, 7),  # see Notes
        Link("internal", 4, 3),  # `x`
        Link("internal", 4, 11),  # [1]_
        Link("internal", 6, 3),
    }
    assert document.references == (
        Reference("external", 0, "toy.Square.area"),
        Reference("external", 0, "toy.scale"),
        Reference("external", 0, "elsewhere.function"),
    )
    assert document.codes == ("toy",)


# queries


@pytest.mark.slow
def test_no_document_has_a_query_in_it(numpy_corpus: DocstringCorpus) -> None:
    def normal(text: str) -> str:
        return " ".join(text.lower().split()).rstrip(".")

    texts = "\n".join(
        normal(node.text) for document in numpy_corpus.documents.values() for node in document.nodes
    )  # a line each
    queries = {normal(query.text) for query in numpy_corpus.summaries + numpy_corpus.see_also}
    # longest first and bounded by anything but a word's letters: as a person would look for them
    copied = [
        query
        for query in queries
        if query in texts and re.search(rf"\b{re.escape(query)}\b", texts)
    ]
    assert not copied


def test_queries_of_the_toy_corpus(toy: DocstringCorpus) -> None:
    assert {query.text: query.relevant for query in toy.summaries} == {
        "Move the shape elsewhere.": ("toy.Shape.move",),
        "Square with four equal sides.": ("toy.Square",),
        "Area of this square.": ("toy.Square.area",),
        "Twice of what is given.": ("toy.also_twice",),
        "Quick version in compiled code.": ("toy.compiled.quick",),
        "How fast it is.": ("toy.compiled.quick.speed",),
        "Length of a vector, as a single number.": ("toy.norm",),
        "Multiply all entries by a factor.": ("toy.scale",),
        "The unit of all lengths in here.": ("toy.unit",),
    }
    assert {
        query.text: query.relevant for query in toy.see_also
    } == {  # not what is another one's summary
        "How much surface a square has.": ("toy.Square.area",),
        "Makes all entries larger or smaller.": ("toy.scale",),
    }


# splits and relevance


def test_split_depends_on_the_name_alone() -> None:
    known = {
        "numpy.linalg.norm": "train",
        "numpy.sort": "test",
        "numpy.pad": "test",
        "numpy.block": "train",
    }  # for all times
    assert {name: numpydoc.split_of(name, numpydoc.SPLITS) for name in known} == known
    names = [f"package.function{number}" for number in range(5000)]
    counts = Counter(numpydoc.split_of(name, numpydoc.SPLITS) for name in names)
    shares = {split: round(count / 5000, 1) for split, count in counts.items()}
    assert shares == {"train": 0.7, "dev": 0.1, "test": 0.2}


@pytest.mark.slow
def test_qrels_grade_the_passages_of_the_relevant_documents(numpy_corpus: DocstringCorpus) -> None:
    test = dataset("numpy/test")
    qrels = test.qrels_dict()
    assert set(qrels) == {query.query_id for query in test.queries_iter()}
    for query in numpy_corpus.summaries:
        if query.query_id in qrels:
            expected = {}
            for docno in query.relevant:
                nodes = numpy_corpus.documents[docno].nodes
                passages = [node for node in nodes if node.kind == "passage"]
                for number, node in enumerate(passages):
                    section = nodes[node.parent].text
                    expected[f"{docno}%p{number}"] = 2 if section in (docno, "Notes") else 1
            assert qrels[query.query_id] == expected
    assert (
        set(test.qrels_defs())
        == {1, 2}
        == {grade for grades in qrels.values() for grade in grades.values()}
    )


# ir_datasets and PyTerrier


@pytest.mark.slow
def test_documents_can_be_sliced_and_looked_up(numpy_corpus: DocstringCorpus) -> None:
    docs = dataset("numpy/see-also/dev")
    names = [*numpy_corpus.documents]
    assert docs.docs_count() == len(names)
    assert [doc.doc_id for doc in docs.docs_iter()[5:][5:15]] == names[10:20]
    assert [doc.doc_id for doc in docs.docs_iter()[-3:]] == names[-3:]
    store = docs.docs_store()
    assert store.get("numpy.sort").doc_id == "numpy.sort"
    assert [doc.doc_id for doc in store.get_many_iter([names[3], "nothing", names[1]])] == [
        names[3],
        names[1],
    ]
    with pytest.raises(KeyError):
        store.get("nothing")
    loaded = pt.get_dataset("irds:pyterrier-graph/numpydoc/numpy").text_loader()(
        pd.DataFrame({"docno": names[:2]})
    )
    assert {"title", "text"} < {*loaded.columns} and loaded["title"].tolist() == names[:2]


@pytest.mark.skipif(
    not any(
        entry.name == "graph"
        for entry in importlib.metadata.entry_points(group="pyterrier.modules")
    ),
    reason="pyterrier_graph is not installed, so it has no entry points",
)
@pytest.mark.slow
def test_found_without_an_explicit_import(tmp_path: Path) -> None:
    code = """
import sys
import pyterrier as pt
assert 'ir_datasets' not in sys.modules and 'torch' not in sys.modules
assert pt.get_dataset("irds:pyterrier-graph/numpydoc/all/test").irds_ref().has_qrels()
assert pt.graph is sys.modules["pyterrier_graph"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)
