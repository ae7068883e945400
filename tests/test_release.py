"""Requirements of a release: one version, a changelog in form, workflows with few rights, and files that exist."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from release_notes import KINDS, ROOT, sections, version_of_package

import pyterrier_graph as ptg

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
workflows = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)


def read(file: Path) -> Any:
    return yaml.load(file.read_text("utf-8"), Loader=yaml.BaseLoader)  # `on` is a word, not True


def test_version_is_written_once() -> None:
    assert version_of_package() == ptg.__version__
    assert "version" not in read(ROOT / "CITATION.cff")


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


@workflows
def test_workflows_have_no_more_rights_than_they_need(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job or "uses" in job, name
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step
            for named in re.findall(
                r"(?:tests|docs|\.ci|pyterrier_graph)/[\w./]+", step.get("run", "")
            ):
                assert (ROOT / named).exists(), named


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
