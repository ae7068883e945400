"""Model cards: a README.md among an artifact's files describes the artifact, its data and its results."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_type
from pyterrier_graph.storage.artifact import CARD, LOAD, META, read_meta, versions, write_file

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, ModelCardData

NOT_STATED = "Not stated."
IN_OTHER_SECTIONS = {
    "file_sha256",
    "files",
    "options",
    "pretraining",
    "random_start",
    "run",
    "training",
    "versions",
}


def write_card(
    artifact: pt.Artifact,
    *,
    description: str | None = None,
    data: str | None = None,
    results: pd.DataFrame | None = None,
    license: str | None = None,
) -> ModelCard:
    """Writes and returns the card of an artifact, a ``README.md`` in its folder, and replaces an earlier card.

    The card also has the code that loads the artifact, its seed, options and versions, the paper and, if the process
    that trained the model also saved it, the training. Missing arguments are "not stated".

    ``artifact.to_hf(...)`` publishes the card with an artifact of this package. A FlexIndex, also a contextual one, is
    an artifact of pyterrier_dr: call ``card.push_to_hub(repo, repo_type="dataset")`` after ``to_hf``.

    Args:
        artifact: An artifact that was saved, built or loaded.
        description: A description of the artifact, in Markdown.
        data: The data that the artifact was made of or trained on, in Markdown.
        results: A table of results, as ``pt.Experiment`` or :func:`~pyterrier_graph.summarize` returns it.
        license: An identifier of https://huggingface.co/docs/hub/repositories-licenses, such as ``'apache-2.0'``.

    Raises:
        FileNotFoundError: If there is no artifact at the artifact's path.
        ValueError: If the artifact was not saved or is damaged, or ``results`` is not a table.
    """
    from huggingface_hub import ModelCard

    check_type("artifact", artifact, pt.Artifact, "an artifact, such as a graph or a model")
    if artifact.path is pt.Artifact.NO_PATH:
        raise ValueError(f"{artifact!r} has no folder: save it first")
    if results is not None and not (isinstance(results, pd.DataFrame) and results.size):
        raise ValueError(
            f"results must be a DataFrame with rows, as pt.Experiment makes it, got {results!r}"
        )
    folder = Path(str(artifact.path))
    meta = read_meta(folder, {})
    sections = {
        "Load": _loading(artifact),
        "Data": data or NOT_STATED,
        "Training": _training(meta) if isinstance(artifact, pt.Estimator) else None,
        "Results": NOT_STATED if results is None else _table(results),
        "License": license or NOT_STATED,
        "Citation": _citation(type(artifact)),
        "Versions": _versions(meta),
        "Details": _json({name: meta[name] for name in meta if name not in IN_OTHER_SECTIONS}),
    }
    parts = [f"# {type(artifact).__name__}", description]
    parts += [f"## {title}\n\n{section}" for title, section in sections.items() if section]
    text = "\n\n".join(part for part in parts if part)
    card = ModelCard(f"---\n{_data(meta, license).to_yaml()}\n---\n\n{text}\n")
    write_file(folder / CARD, str(card).encode())
    (folder / CARD).chmod((folder / META).stat().st_mode & 0o777)
    return card


def _data(meta: dict[str, Any], license: str | None) -> ModelCardData:
    """The metadata of a card, with the tags by which PyTerrier's artifacts are found."""
    from huggingface_hub import ModelCardData

    kind = ["pyterrier-artifact", *(meta[name] for name in ("type", "format") if name in meta)]
    tags = ["pyterrier", *(".".join(kind[:depth]) for depth in range(1, len(kind) + 1))]
    task = ["text-retrieval"]
    return ModelCardData(license=license, tags=tags, task_categories=task, viewer=False)


def _table(results: pd.DataFrame) -> str:
    return results.to_html(border=0, na_rep="", float_format="{:.4g}".format)


def _versions(meta: dict[str, Any]) -> str:
    packages = meta.get("versions", versions()).items()
    verb = "Saved" if "versions" in meta else "This card was written"
    return f"{verb} with {', '.join(f'{package} {version}' for package, version in packages)}."


def _loading(artifact: pt.Artifact) -> str:
    names: tuple[str, ...] = getattr(artifact, "GIVEN", ())
    arguments = "".join(f", {name}={name}" for name in names)
    code = f"```python\nimport pyterrier as pt\n\nartifact = {LOAD}{arguments})\n```"
    return f"{code}\n\nNot part of it: {', '.join(names)}." if names else code


def _training(meta: dict[str, Any]) -> str:
    """The steps, best values and options of each stage, and the run."""
    stages = [name for name in ("pretraining", "training") if name in meta]
    told: dict[str, Any] = {
        name: {key: value for key, value in meta[name].items() if key != "log"} for name in stages
    }
    told |= {"run": meta["run"]} if "run" in meta else {}
    return _json(told) if stages else "How it was trained is not stated."


def _citation(kind: type) -> str | None:
    """The citation in the docstring of a class."""
    doc = inspect.getdoc(kind) or ""
    match = re.search(r":citation:\s+(.+?)\n\s*:link:\s+(\S+)", doc, re.DOTALL)
    return f"{' '.join(match[1].split())} <{match[2]}>" if match else None


def _json(value: Any) -> str:
    """A block of JSON."""
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
