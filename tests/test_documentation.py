"""The documentation: its code runs, its commands and files exist, its numbers were measured, and Sphinx builds it."""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
import tiny
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

import pyterrier_graph as ptg

ROOT = Path(__file__).parent.parent
PT_DOCS = ROOT / "pyterrier_graph" / "pt_docs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(PT_DOCS.glob("*.rst"))]
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
            code = OPTIONS_OF_A_BLOCK.sub(lambda options: "\n" * options[0].count("\n"), block[body], count=1)
            found.append("\n" * text.count("\n", 0, block.start(body)) + textwrap.dedent(code))
    return found


# --- Python


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


def cross_encoder(folder: Path) -> str:
    """An untrained one, which reads as much as most do."""
    start = tiny.checkpoint(positions=512)
    BertForSequenceClassification(BertConfig.from_pretrained(start, num_labels=1)).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(start).save_pretrained(folder)
    return str(folder)


def what_a_reader_has(page: Path, folder: Path) -> dict[str, Any]:
    """Small things under the names that pages take as given."""
    docnos = [document.docno for document in tiny.documents()]
    if page.stem == "patents":
        docnos = [patent["docno"] for patent in pt.get_dataset("irds:clef-ip").get_corpus_iter(verbose=False)]
    return {
        "dataset": Corpus(),
        "bm25": first_stage(docnos),
        "encoder": tiny.encoder(),
        "checkpoint": cross_encoder(folder / "cross-encoder"),
        "training": ptg.HGATTraining(negatives="candidates", epochs=1, max_triples=8),
        "document_qrels": pd.DataFrame([{"qid": f"t{n}", "docno": f"d{n}", "label": 1} for n in range(6)]),
        **{f"{split}_topics": tiny.topics() for split in ("train", "dev", "test")},
        **{f"{split}_qrels": tiny.qrels() for split in ("train", "dev", "test")},
    }


@pages
def test_code_runs(page: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks(page, "python")
    if any("pyterrier_pisa" in block for block in code):
        pytest.importorskip("pyterrier_pisa", reason="PISA is for x86-64 Linux")
    monkeypatch.chdir(tmp_path)
    namespace = what_a_reader_has(page, tmp_path) if code else {}
    for block in code:
        exec(compile(block, page, "exec"), namespace)
    assert code or page.parent.name == "docs" or page.stem.startswith(("api-", "from-"))


def test_blocks_are_found() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert sum(len(blocks(page, language)) for language in ("python", "sh")) == len(
            re.findall(r"^```\w|\.\. code-block::", text, re.MULTILINE)
        )


# --- commands and files


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in a page's blocks, and of those that begin with a file in its text."""
    shown = [line for block in blocks(page, "sh") for line in re.split(r"\n|&&", block) if line.strip()]
    named = re.findall(r"``?((?:python -m|docs/|tests/|examples/|experiments/)[^`]*)``?", page.read_text("utf-8"))
    for line in [*shown, *named]:
        yield [word for word in shlex.split(line) if "=" not in word or word.startswith("-")]


def source_of(module: str) -> str:
    """The source of a module, and of ours that it imports: where its options are."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    source = Path(spec.origin).read_text("utf-8")
    ours = re.findall(r"from ((?:pyterrier_graph|experiments)[\w.]*) import", source)
    return "".join([source, *(Path(str(importlib.util.find_spec(name).origin)).read_text("utf-8") for name in ours)])  # type: ignore[union-attr]


@pages
def test_commands_and_files_exist(page: Path) -> None:
    extras = metadata("pyterrier_graph").get_all("Provides-Extra") or []
    for program, *arguments in commands(page):
        if program == "pip":
            wanted = [extra for word in arguments for extra in re.findall(r"\.\[(\w+)\]", word)]
            assert set(wanted) <= {*extras} and (ROOT / "constraints.txt").exists(), arguments
            continue
        if program == "sphinx-build":
            assert all((ROOT / word).exists() for word in arguments if "/" in word)
            continue
        if program == "python":
            program, *arguments = arguments
        if program == "-m":
            program, *arguments = arguments
            module = {"pyterrier_graph": "pyterrier_graph.demo", "pytest": "pytest"}.get(program, program)
        else:
            assert (ROOT / program).exists(), program
            module = Path(program).stem if program.startswith("examples/") else ""
        options = [word for word in arguments if word.startswith("--")]
        source = source_of(module) if module else ""
        assert not (missing := [option for option in options if f'"{option}"' not in source]), f"{program}: {missing}"


# --- numbers

DATASETS = ("numpydoc, numpy", "MedQuAD", "TREC CAR test200")
DECIMAL = r"(?<![\w.])\d+\.\d{1,3}(?![\w.])"


def results() -> dict[str, set[str]]:
    """The numbers in each section of the results, bold or not."""
    sections = re.split(r"^## (.*)\n", (ROOT / "docs" / "results.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {name: {*re.findall(DECIMAL, text)} for name, text in zip(sections[::2], sections[1::2], strict=True)}


@pytest.mark.parametrize("page", [ROOT / "README.md", PT_DOCS / "which-model-when.rst"], ids=lambda page: page.name)
def test_tables_are_those_of_the_results(page: Path) -> None:
    measured = results()
    number = r"(0\.\d{3})\W+"
    rows = re.findall(rf"^.*?{number * 2}(0\.\d{{3}})\W*?$", page.read_text("utf-8"), re.MULTILINE)
    assert rows
    for row in rows:
        for value, dataset in zip(row, DATASETS, strict=True):
            assert value in measured[dataset], f"{row}: {dataset} has no {value}"


@pytest.mark.parametrize("name", ["which-model-when.rst", "patents.rst"])
def test_numbers_were_measured(name: str) -> None:
    prose = re.sub(r"``.*?``", "", BLOCK.sub("", (PT_DOCS / name).read_text("utf-8")))
    measured = set().union(*results().values())
    assert {*re.findall(DECIMAL, prose)} <= measured


# --- Sphinx


@pytest.mark.slow
def test_pages_build_without_warnings_and_have_every_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``sphinx-build -W`` does, without writing HTML."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    monkeypatch.setattr(sys, "path", [*sys.path])
    warnings = io.StringIO()
    with docutils_namespace():
        app = Sphinx(PT_DOCS, ROOT / "docs", tmp_path, tmp_path / "doctrees", "dummy", status=None, warning=warnings)
        app.build()
    assert warnings.getvalue() == ""
    names = app.env.domains["py"].objects
    public = {name: getattr(ptg, name) for name in ptg.__all__}
    missing = [
        name
        for name, value in public.items()
        if not {f"pyterrier_graph.{name}", f"{value.__module__}.{value.__qualname__}"} & names.keys()
    ]
    assert not missing, f"without an entry in pt_docs/api-*.rst: {missing}"
