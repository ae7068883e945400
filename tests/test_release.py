"""Requirements of a release: one version, a changelog in form, and versions that fit."""

from __future__ import annotations

import datetime
import re

from packaging.requirements import Requirement
from packaging.version import Version
from release_notes import KINDS, ROOT, sections, version_of_package

import pyterrier_graph as ptg

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_version_is_written_once() -> None:
    assert version_of_package() == ptg.__version__


def test_changelog_is_in_form() -> None:
    found = sections(CHANGELOG)
    assert "keepachangelog.com" in CHANGELOG and len(found) == CHANGELOG.count("\n## ")
    first, *released = found
    assert first == "Unreleased" and found[first][0] is None
    assert released == sorted(released, key=Version, reverse=True)
    for date, text in found.values():
        assert date is None or datetime.date.fromisoformat(date)
        kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert {*kinds} <= {*KINDS} and len({*kinds}) == len(kinds)
    assert ptg.__version__ in released or found["Unreleased"][1]


def test_constraints_are_allowed() -> None:
    """setup.py allows the versions that are known to work together."""
    setup = (ROOT / "setup.py").read_text("utf-8")
    allowed = {
        re.sub(r"[_.]", "-", wanted.name).lower(): wanted
        for wanted in map(
            Requirement, re.findall(r'^ *"([\w-]+(?:\[\w+\])?>=[^";]+)', setup, re.MULTILINE)
        )
    }
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert len({*allowed} & {*pinned}) > 25
    assert not {
        name: pinned[name]
        for name in pinned
        if name in allowed and pinned[name] not in allowed[name].specifier
    }
