"""Readers of the collections that the experiments run on."""

from __future__ import annotations

import argparse

from experiments.collections.cacm import read_cacm
from experiments.collections.cranfield import read_cranfield
from experiments.collections.html_documentation import read_html_documentation
from experiments.collections.ir_datasets import read_ir_datasets
from experiments.collections.medquad import read_medquad
from experiments.collections.numpydoc import read_numpydoc, read_see_also
from experiments.collections.qasper import read_qasper
from experiments.collections.trec_car import read_trec_car
from experiments.collections.vaswani import read_vaswani
from experiments.harness.collection import Collection

FROM_PATH = {
    "trec-car": read_trec_car,
    "cranfield": read_cranfield,
    "cacm": read_cacm,
    "vaswani": read_vaswani,
    "qasper": read_qasper,
    "html": read_html_documentation,
}
NUMPYDOC = ("numpydoc", "numpydoc-numpy", "numpydoc-see-also", "numpydoc-numpy-see-also")
COLLECTIONS = (*NUMPYDOC, "medquad", *FROM_PATH)


def open_collection(options: argparse.Namespace) -> Collection:
    """The collection that a command line names.

    Args:
        options: ``collection``, ``path``, ``passages``, ``train`` and ``test``: see
            :func:`experiments.harness.command.parser`.

    Raises:
        ValueError: If there is no such collection, or its path is missing.
    """
    name = options.collection
    if name.startswith("irds:"):
        return read_ir_datasets(*name.split(","), train=options.train, test=options.test)
    if name in NUMPYDOC:
        read = read_see_also if name.endswith("see-also") else read_numpydoc
        return read("numpy" if "numpy" in name.split("-") else "all")
    if name not in COLLECTIONS:
        raise ValueError(f"unknown collection {name!r}: name {', '.join(COLLECTIONS)} or irds:...")
    if options.path is None:
        raise ValueError(f"{name} needs the folder that it is in")
    if name == "medquad":
        return read_medquad(options.path, passages=options.passages)
    return FROM_PATH[name](options.path)
