"""``python tests/release_notes.py v0.1.0`` prints what the changelog says of a version, if it may be released.

The tag, ``__version__`` and the changelog have to name the same version; the changelog's section needs its date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def version_of_package() -> str:
    """``__version__``, without an import."""
    return re.findall(
        r'^__version__ = "(.+)"$',
        (ROOT / "pyterrier_graph" / "__init__.py").read_text("utf-8"),
        re.M,
    )[0]


def sections(changelog: str) -> dict[str, tuple[str | None, str]]:
    """The date and the text of each version, newest first; ``Unreleased`` has no date."""
    found = [*HEADING.finditer(changelog)]
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return {
        match["name"]: (match["date"], changelog[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    }


def notes(tag: str, version: str, changelog: str) -> str:
    """The notes of a release; SystemExit says what is not ready."""
    if tag != f"v{version}":
        raise SystemExit(
            f"the tag is {tag}, but pyterrier_graph/__init__.py has the version {version}: tag v{version}"
        )
    date, text = sections(changelog).get(version, (None, ""))
    if date is None or not text:
        raise SystemExit(
            f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`: rename `## [Unreleased]`"
        )
    return text + "\n"


if __name__ == "__main__":
    print(
        notes(sys.argv[1], version_of_package(), (ROOT / "CHANGELOG.md").read_text("utf-8")), end=""
    )
