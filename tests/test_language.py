"""Docstrings, comments, errors, pages and notebooks are idiomatic: no pattern that can be searched for is found."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("pyterrier_graph", "experiments", "examples", "docs", "tests")
FILES = sorted(
    [
        file
        for folder in FOLDERS
        for end in ("py", "md", "rst")
        for file in ROOT.glob(f"{folder}/**/*.{end}")
    ]
    + [*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.ipynb")]
)

ERROR = r"(?:Value|Type|Key|Runtime|Index|OS|FileNotFound|Import|Attribute)Error"
# what reads as translated, and what to write
PATTERNS = {
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|\w+er\b|such|one\b|doubt|need|worse)\w+": "is not a",
    r"\banew\b": "again",
    r"\bas ever\b": "as always",
    r"\blonger than (?:it|they) needs?\b": "than necessary",
    r"\b(?<!side )beside (?:the|th\w+|its?|what|each|every|our|an?)\b": "in addition to, next to",
    rf"\b(?:is|are) an? {ERROR}\b(?! (?:that|of|with|whose))": "raises",
    r"\b(?:that|which|what) (?:these|those|they|it) (?:is|are) of\b": "their, its",
    r"\b(?:goes|go|went|going) on\b": "continues",
    r"\btells? (?:apart|\w+ apart)\b": "distinguishes",
    r"\bwhat one\b": "what",
}
BEGINNING = re.compile(r"(?:What|Whether what|Who)\b")


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file by the number of their first line: its docstrings, comments and messages, or its text."""
    source = file.read_text("utf-8")
    if file.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(source)["cells"]):
            if cell["cell_type"] == "markdown":
                yield number, "".join(cell["source"])
    elif file.suffix != ".py":
        yield 1, re.sub(r"``.*?``|`[^`\n]*`", "``", source)
    else:
        if any(
            re.search(pattern, source) for pattern in PATTERNS
        ):  # else no comment has one: most files end here
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def problems(file: Path) -> list[str]:
    """What to change in a file."""
    found = [
        f"line {number + text.count(chr(10), 0, match.start())}: {match[0]!r} (write: {advice})"
        for number, text in texts(file)
        for pattern, advice in PATTERNS.items()
        for match in re.finditer(pattern, text)
    ]
    if file.suffix == ".py":
        starts = ((number, text) for number, text in docstrings(file) if BEGINNING.match(text))
        found += [
            f"line {number}: a docstring begins with {text.split()[0]!r}" for number, text in starts
        ]
    return found


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file != Path(__file__)],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_phrases_to_avoid(file: Path) -> None:
    assert not problems(file)
