"""The public names and signatures are those of a list in the repository, so that a review sees each change of them."""

from __future__ import annotations

import difflib
from pathlib import Path

from api import api

LIST = Path(__file__).with_name("api.txt")
COMMAND = "python -m tests.api > tests/api.txt"


def test_public_names_and_signatures() -> None:
    before, now = LIST.read_text("utf-8").splitlines(), api().splitlines()
    changes = "\n".join(difflib.unified_diff(before, now, "tests/api.txt", "now", lineterm="", n=0))
    assert not changes, f"if this change of the public names is meant, run `{COMMAND}`:\n{changes}"
