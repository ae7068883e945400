"""The documentation: its code runs, its commands and files exist, its numbers were measured, and Sphinx builds it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from joblib.externals.loky import get_reusable_executor

import pyterrier_graph as ptg

ROOT = Path(__file__).parent.parent
PT_DOCS = ROOT / "pyterrier_graph" / "pt_docs"
HOW_TO = PT_DOCS / "how-to.rst"
RESULTS = ROOT / "docs" / "results.md"
ARCHIVE = ROOT / "experiments" / "results" / "archive.md"
TABLES = sorted({*ROOT.glob("experiments/results/*.md")} - {ARCHIVE})
MARKDOWN = [
    ROOT / "README.md",
    ARCHIVE,
    *(page for folder in ("docs", "experiments") for page in sorted(ROOT.glob(f"{folder}/*.md"))),
]
PAGES = [*MARKDOWN, *TABLES, *sorted(PT_DOCS.glob("*.rst"))]
BLOCK = re.compile(
    r"^```(?P<fenced>\w+)\n(?P<markdown>(?:.*\n)*?)```|"
    r"^(?P<indent> *)\.\. code-block:: (?P<directive>\w+)\n(?P<rst>(?:(?P=indent) +.*\n|\n)+)",
    re.MULTILINE,
)
OPTIONS_OF_A_BLOCK = re.compile(r"^(?: *:\w+:.*\n)*")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in one language, with as many lines before it as there are on the page."""
    found = []
    text = page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        if language == (block["fenced"] or block["directive"]):
            body = "markdown" if block["fenced"] else "rst"
            code = OPTIONS_OF_A_BLOCK.sub(
                lambda options: "\n" * options[0].count("\n"), block[body], count=1
            )
            found.append("\n" * text.count("\n", 0, block.start(body)) + textwrap.dedent(code))
    return found


# --- Python

SLOW = ("README", "index", "patents", "terrier")  # their code encodes and trains
SPLITS = {"train": "", "dev": " mu", "test": " kappa"}  # and what their queries end with


class Corpus:
    """Documents, as a dataset hands them out, and their texts."""

    def __init__(self) -> None:
        self.documents = tiny.documents()

    def get_corpus_iter(self) -> Iterator[dict[str, Any]]:
        for document in self.documents:
            yield vars(document) | {"title": document.title, "text": " ".join(document.passages())}

    def text_loader(self, fields: Any = "*", *, verbose: bool = False) -> pt.Transformer:
        texts = {record["docno"]: record["text"] for record in self.get_corpus_iter()}
        return pt.apply.text(lambda row: texts[row["docno"]])


def first_stage(docnos: list[str]) -> pt.Transformer:
    """Finds every document for every query."""
    found = pd.DataFrame({"docno": docnos, "score": range(len(docnos), 0, -1)})
    return pt.apply.generic(
        lambda topics: pt.model.add_ranks(topics.merge(found.astype({"score": float}), how="cross"))
    )


def rewriting() -> pt.Transformer:
    """Rewrites queries as Terrier does; ``pt.rewrite.reset()`` restores them."""
    return pt.apply.query(lambda row: f"applypipeline:off {row['query']}")


def what_a_reader_has(page: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Small things under the names that pages take as given."""
    docnos = [document.docno for document in tiny.documents()]
    if page.stem == "terrier":
        monkeypatch.setattr(pt.rewrite, "tokenise", rewriting)
        passages = first_stage(["d0%p0", "d3%p1"])
        monkeypatch.setattr("pyterrier_graph.search.builder.build_engine", lambda *_, **__: None)
        monkeypatch.setattr("pyterrier_graph.search.lexical.open_engine", lambda *_: passages)
        built = SimpleNamespace(indexer=lambda **_: SimpleNamespace(index=list))
        monkeypatch.setattr(pt.terrier, "TerrierIndex", lambda _: built)
        monkeypatch.setattr(pt.terrier, "Retriever", lambda *_, **__: passages)
    if page.stem == "patents":
        docnos = [
            patent["docno"]
            for patent in pt.get_dataset("irds:clef-ip").get_corpus_iter(verbose=False)
        ]
    return {
        "dataset": Corpus(),
        "bm25": first_stage(docnos),
        "terrier_index": SimpleNamespace(
            bm25=lambda: first_stage(docnos),
            rm3=lambda: (
                pt.apply.generic(lambda found: found[["qid", "query"]].drop_duplicates())
                >> rewriting()
            ),
            get_corpus_iter=lambda *, return_toks: Corpus().get_corpus_iter(),
        ),
        "checkpoint": tiny.cross_encoder(positions=512),
        "document_qrels": pd.concat(
            pd.DataFrame([{"qid": f"{split}{n}", "docno": f"d{n}", "label": 1} for n in range(6)])
            for split in SPLITS
        ),
        **{
            f"{split}_topics": tiny.topics().replace(
                {"qid": {"^t": split}, "query": {"$": end}}, regex=True
            )
            for split, end in SPLITS.items()
        },
        **{
            f"{split}_qrels": tiny.qrels().replace({"qid": "^t"}, split, regex=True)
            for split in SPLITS
        },
    }


EXTRAS = "markdown_it mdit_py_plugins lxml bs4 numpydoc pyterrier_pisa ray faiss ipywidgets"


@pytest.mark.slow
def test_first_program_needs_no_extra(tmp_path: Path) -> None:
    """Nor a name that is given, nor a download: it uses the packaged encoder."""
    blocked = f"import sys\nsys.modules |= dict.fromkeys({EXTRAS.split()})\n"
    first = next(block for block in blocks(ROOT / "README.md", "python") if "GraphIndex" in block)
    program = [sys.executable, "-c", blocked + first]
    found = subprocess.run(
        program,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert re.search(r"^0 +Toaster T2 +It switches itself off\.$", found.stdout.decode(), re.M)


PROGRAM = re.compile(
    r"^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\n)+)(?:\1\.\. code-block:: text\n\n((?:\1 +.*\n|\n)+))?",
    re.MULTILINE,
)


def words_of_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def columns(text: str) -> list[str]:
    """The first line without ids and scores."""
    return re.sub(r"numpy\.\S+|\d+\.\d+", "", text.strip().splitlines()[0]).split()


@pytest.mark.slow
def test_how_to_guides_print_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one layer of the encoder, scores are others than on the page: of these, only the columns are compared."""
    pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "how_to"}  # which warnings look up
    for _, code, shown in PROGRAM.findall(HOW_TO.read_text("utf-8")):
        assert shown, f"the page does not show what this program prints:\n{code}"
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(textwrap.dedent(code), HOW_TO, "exec"), namespace)
        printed = out.getvalue()
        assert columns(printed) == columns(shown), code
        if not re.search(r"\d\.\d", shown):  # no scores
            assert words_of_lines(printed) == words_of_lines(shown), code


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in SLOW else ())
        for page in PAGES
        if page != HOW_TO
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_runs(page: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    get_reusable_executor().shutdown(
        wait=True
    )  # joblib's processes of an earlier test are in another folder
    namespace = what_a_reader_has(page, monkeypatch) if code else {}
    for block in code:
        exec(compile(block, page, "exec"), namespace)


# --- commands and files

EARLIER = "git checkout "  # how a command begins whose program is only in an earlier commit


def words_of(line: str) -> list[str]:
    """The words of a command, without the environment variables before it."""
    return [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in a page's blocks, and of those that begin with a file in its text."""
    current = [block for block in blocks(page, "sh") if EARLIER not in block]
    shown = [line for block in current for line in re.split(r"\n|&&", block) if line.strip()]
    named = re.findall(
        r"``?((?:python -m|docs/|tests/|examples/|experiments/)[^`]*)``?", page.read_text("utf-8")
    )
    yield from map(words_of, [*shown, *named])


def source_of(module: str) -> str:
    """The source of a module, and of ours that it imports: where its options are."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    source = Path(spec.origin).read_text("utf-8")
    ours = re.findall(r"from ((?:pyterrier_graph|experiments)[\w.]*) import", source)
    return "".join(
        [
            source,
            *(Path(str(importlib.util.find_spec(name).origin)).read_text("utf-8") for name in ours),
        ]
    )  # type: ignore[union-attr]


def help_of(experiment: str) -> str:
    """What an experiment says of its options."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        importlib.import_module(experiment).main(["--help"])
    return out.getvalue()


@pages
def test_commands_and_files_exist(page: Path) -> None:
    extras = metadata("pyterrier_graph").get_all("Provides-Extra") or []
    for program, *arguments in commands(page):
        if program == "pip":
            wanted = [extra for word in arguments for extra in re.findall(r"\.\[(\w+)\]", word)]
            assert set(wanted) <= {*extras} and (ROOT / "constraints.txt").exists(), arguments
            continue
        if program == "python":
            program, *arguments = arguments
        module = ""
        if program == "-m":
            program, *arguments = arguments
            ours = (
                "pyterrier_graph.demo" if arguments[:1] == ["demo"] else "pyterrier_graph.__main__"
            )
            module = ours if program == "pyterrier_graph" else program
        else:
            assert (ROOT / program).exists(), program
            if program.startswith(("examples/", "experiments/")) and program.endswith(".py"):
                module = program.removeprefix("examples/").removesuffix(".py").replace("/", ".")
        if module in ("experiments.NAME", "experiments.papers"):
            continue  # NAME stands for any program; test_experiments parses the commands of papers
        options = [word for word in arguments if word.startswith("--")]
        about = help_of if module.startswith("experiments.") else source_of
        known = about(module) if module else ""
        assert not (missing := [option for option in options if option not in known]), (
            f"{program}: {missing}"
        )


@pytest.mark.parametrize("page", [*MARKDOWN, *TABLES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!\w+:|#)([^)#]+)", page.read_text("utf-8"))
    assert not (missing := [target for target in targets if not (page.parent / target).exists()]), (
        missing
    )


# --- numbers

DECIMAL = r"(?<![\w.])\d+\.\d{1,3}(?![\w.])"
NUMBER = r"(?<![\w.@])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"
VERSION = r"(?:Python|Apache) \d\.\d+(?: to \d\.\d+)?"
LINK = r"\]\((\w+\.md#[\w-]+)\)"


def sections(page: Path) -> dict[str, str]:
    """The text of each section of a page, by the anchor that links to it have."""
    _, *parts = re.split(r"^## (.*)\n", page.read_text("utf-8"), flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in parts[::2]]
    return dict(zip(anchors, parts[1::2], strict=True))


def measured() -> dict[str, set[str]]:
    """The numbers in each section of the pages with tables, bold or not, by ``page.md#section``."""
    texts = {
        f"{page.name}#{anchor}": text
        for page in (*TABLES, RESULTS)
        for anchor, text in sections(page).items()
    }
    return {name: {*re.findall(NUMBER, text)} for name, text in texts.items()}


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_tables_have_their_command(page: Path) -> None:
    found = sections(page)
    assert any("|---" in text for text in found.values())
    assert not (
        missing := [name for name, text in found.items() if "|---" in text and "```sh" not in text]
    ), missing


def test_conclusions_are_those_of_the_tables() -> None:
    """Each number of the archive stands in the section that the next link leads to."""
    tables = measured()
    text = "".join(sections(ARCHIVE).values())
    checked = 0
    for block in re.split(r"\n\n|\n(?=- )", text):
        *claims, rest = re.split(LINK, block)
        for claim, link in zip(claims[::2], claims[1::2], strict=True):
            numbers = {*re.findall(NUMBER, claim)}
            assert link in tables, f"no section {link}"
            assert not (wrong := numbers - tables[link]), f"{link} has no {wrong}"
            checked += len(numbers)
        assert not re.findall(NUMBER, rest), f"no link follows the numbers of {rest!r}"
    assert checked > 50


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", PT_DOCS / "which-model-when.rst", PT_DOCS / "patents.rst"],
    ids=lambda page: page.name,
)
def test_numbers_were_measured(page: Path) -> None:
    prose = re.sub(rf"``.*?``|{VERSION}", "", BLOCK.sub("", page.read_text("utf-8")))
    assert not (wrong := {*re.findall(DECIMAL, prose)} - set().union(*measured().values())), wrong


# --- Sphinx


@pytest.mark.slow
def test_pages_build_without_warnings_and_have_every_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``python docs/pages.py`` does; classes have their own signatures, notebooks their outputs and links."""
    from sphinx.addnodes import desc_signature
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    monkeypatch.setattr(sys, "path", [*sys.path])
    source = importlib.import_module("pages")
    sources = source.assemble(tmp_path / "sources", "owner/name", "v1.0")
    warnings = io.StringIO()
    with docutils_namespace():
        written = tmp_path / "pages"
        app = Sphinx(
            sources,
            ROOT / "docs",
            written,
            tmp_path / "doctrees",
            "html",
            status=None,
            warning=warnings,
        )
        app.build()
    assert warnings.getvalue() == ""
    entries = [
        entry
        for name in app.env.found_docs
        for entry in app.env.get_doctree(name).findall(desc_signature)
    ]
    assert not (
        hidden := [entry.astext() for entry in entries if "(*args, **kwargs)" in entry.astext()]
    ), hidden
    names = app.env.domains["py"].objects
    public = {name: getattr(ptg, name) for name in ptg.__all__}
    missing = [
        name
        for name, value in public.items()
        if not {f"pyterrier_graph.{name}", f"{value.__module__}.{value.__qualname__}"}
        & names.keys()
    ]
    assert not missing, f"without an entry in pt_docs/api-*.rst: {missing}"
    for path in source.NOTEBOOKS:
        page = (written / "notebooks" / f"{path.stem}.html").read_text("utf-8")
        for service in (
            "colab.research.google.com/github",
            "kaggle.com/kernels/welcome?src=https://github.com",
        ):
            link = f'href="https://{service}/owner/name/blob/v1.0/notebooks/{path.name}"'
            assert (link in page) == (path.stem not in source.NEED_A_CLONE)
        assert (
            page.count("cell_output docutils") >= len(outputs_of(path))
            and "<table" in page
            and "<img" in page
        )


def outputs_of(path: Path) -> list[Any]:
    """The cells of a notebook that show something."""
    return [cell for cell in nbformat.read(path, 4).cells if cell.get("outputs")]
