"""The page of results, from the stored measure of each query.

    python -m experiments.transfer ... --values experiments/results/values
    python -m experiments.report

``values/*.csv`` has a table per collection, which :mod:`experiments.transfer` writes; ``values/about.json`` names the
version that it measured. ``values/ablation.csv.gz`` has what each mechanism that was not kept changed for each query;
the program that measured it is not kept either: see ``results/ablation.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp
from statsmodels.stats.multitest import multipletests

ROOT = Path(__file__).parent
VALUES, PAGE = ROOT / "results" / "values", ROOT.parent / "docs" / "results.md"
PROSE = ROOT / "report.md"  # with the names of tables and answers in braces
ABOUT, MECHANISMS = "about.json", "ablation.csv.gz"
LEVEL = 0.05

# the systems of experiments.transfer
BM25, DENSE, MEAN = "BM25", "dense", "GraphMean"
RIVAL, RIVAL_EVIDENCE = "BM25 + dense", "BM25 + dense + evidence"
MEAN_HYBRID, INDEX = "BM25 + GraphMean", "GraphIndex"
PAST, FITTED = ", past queries", ", past queries, fitted"
NETWORK, GNN = "network without edges", "GNNEncoder"
TRAINED = ", past queries, trained"
MAXSIM, HGAT = (f"{INDEX}{PAST}, 100 best >> {name}" for name in ("GraphMaxSim", "HGAT"))
CROSS, LGRE = (f"{INDEX}{PAST}, 20 best >> {name}" for name in ("cross-encoder", "LGRe"))

NAMES = {
    "qasper": "Qasper",
    "cacm": "CACM",
    "cranfield": "Cranfield",
    "vaswani": "Vaswani",
    "trec-car": "TREC CAR",
    "medquad": "MedQuAD",
    "numpydoc-numpy": "numpydoc",
    "numpydoc-numpy-see-also": "see-also",
    "html": "PostgreSQL",
}
RIVALS = {
    "": RIVAL,
    PAST: RIVAL_EVIDENCE + FITTED,
}  # of systems without and with past queries
NETWORKS = (MEAN + PAST, NETWORK + TRAINED, GNN + TRAINED)

Values = Mapping[str, pd.DataFrame]  # by collection: a row per query, a column per system


class Difference(NamedTuple):
    """How much better one system is than another."""

    mean: float  # over collections
    by_collection: dict[str, float]
    better: list[str]  # collections on which it is significantly better
    worse: list[str]

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({len(self.better)}/{len(self.worse)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.parse_args(arguments)
    PAGE.write_text(page(VALUES), encoding="utf-8")


def page(folder: Path) -> str:
    """The page of the values in a folder."""
    values = read(folder)
    parts = {
        **json.loads((folder / ABOUT).read_text(encoding="utf-8")),
        "queries": f"{sum(map(len, values.values())):,}",
        "collections": len(values),
        "systems": systems(values),
        "without": without_effect(pd.read_csv(folder / MECHANISMS)),
        **answers(values),
    }
    text = PROSE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", str(part))
    return text


def read(folder: Path) -> Values:
    """The values of each collection that was measured."""
    files = {name: folder / f"{name}.csv" for name in NAMES}
    return {
        name: pd.read_csv(file, dtype={"qid": str}).set_index("qid")
        for name, file in files.items()
        if file.exists()
    }


def difference(differences: Mapping[str, pd.Series | np.ndarray]) -> Difference:
    """Tests the differences of two systems for each query, by collection (Holm's correction over collections)."""
    pvalues = [
        ttest_1samp(part, 0).pvalue if np.any(part) else 1.0 for part in differences.values()
    ]
    decided = multipletests(pvalues, LEVEL, method="holm")[0]
    means = {name: float(np.mean(part)) for name, part in differences.items()}
    certain = [name for name, one in zip(means, decided, strict=True) if one]
    return Difference(
        float(np.mean([*means.values()])),
        means,
        [name for name in certain if means[name] > 0],
        [name for name in certain if means[name] < 0],
    )


def compared(values: Values, system: str, other: str) -> Difference:
    """The difference of two systems, on the collections where both were measured."""
    return difference(
        {
            name: table[system] - table[other]
            for name, table in values.items()
            if {system, other} <= {*table}
        }
    )


def mean(values: Values, system: str) -> str:
    """The mean of a system over the collections where it was measured."""
    return f"{np.mean([table[system].mean() for table in values.values() if system in table]):.3f}"


# --- tables


def systems(values: Values) -> str:
    """A row per system, a column per collection, and marks of significance against the rival."""
    names = dict.fromkeys(name for table in values.values() for name in table)
    rows: list[list[str]] = [["test queries", *(f"{len(table)}" for table in values.values()), ""]]
    complete = {name: [n for n, table in values.items() if name in table] for name in names}
    for name in names:
        rival = RIVALS[PAST if PAST in name else ""]
        marks: dict[str, str] = {}
        if name != rival:
            tested = compared(values, name, rival)
            marks = dict.fromkeys(tested.better, "+") | dict.fromkeys(tested.worse, "-")
        cells = [
            f"{table[name].mean():.3f}{marks.get(collection, '')}" if name in table else ""
            for collection, table in values.items()
        ]
        eight = {n: values[n] for n in complete[name] if INDEX + PAST in values[n]}
        rows.append([name, *cells, mean(eight, name)])
    return markdown(["nDCG@10", *(NAMES[name] for name in values), "mean"], rows)


def without_effect(changes: pd.DataFrame) -> str:
    """A row per mechanism, a column per set of runs: what it changes in the mean."""
    runs = ["MiniLM, full", "MiniLM, samples", "mpnet, samples"]
    rows = []
    for mechanism, part in changes.groupby("mechanism", sort=False):
        cells = []
        for run in runs:
            by_collection = part[part["run"] == run].groupby("collection")["difference"]
            found = {str(name): series for name, series in by_collection}
            cells.append(str(difference(found)) if found else "")
        rows.append([str(mechanism), *cells])
    return markdown(["mechanism", *runs], rows)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *body = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([head, "|---" * len(header) + "|", *body])


# --- questions


def answers(values: Values) -> dict[str, str]:
    """The answers to the questions of the page, whose numbers are computed."""
    past = {name: table for name, table in values.items() if INDEX + PAST in table}
    both = {"graph": (INDEX, RIVAL), "evidence": (INDEX, RIVAL_EVIDENCE)}
    whole, fair = (compared(past, *pair) for pair in both.values())
    fitted = compared(past, INDEX + FITTED, RIVAL_EVIDENCE + FITTED)
    unfitted = compared(past, INDEX + PAST, RIVAL_EVIDENCE + PAST)
    vectors = compared(past, MEAN, DENSE)
    unseen = {name: table for name, table in values.items() if name not in past}
    return {
        "count": str(len(past)),
        "graph": f"GraphIndex has {mean(past, INDEX)} on average over {len(past)} collections and the rival "
        f"{mean(past, RIVAL)}: {outcome(whole)}. Most of it comes from {largest(whole)}. "
        f"Vectors alone gain {vectors.mean:+.3f} ({mean(past, MEAN)} against {mean(past, DENSE)}).",
        "evidence": f"With the scores of the document and of neighboring passages, the rival has "
        f"{mean(past, RIVAL_EVIDENCE)}, and GraphIndex is {outcome(fair)}. So {1 - fair.mean / whole.mean:.0%} of "
        f"the difference is evidence from other results, which needs no graph, only the order of passages.",
        "past": f"Past queries raise GraphIndex from {mean(past, INDEX)} to {mean(past, INDEX + PAST)}, and to "
        f"{mean(past, INDEX + FITTED)} where validation queries fit its settings. "
        f"The rival with past queries in its text, fitted in the same way, has {mean(past, RIVAL_EVIDENCE + FITTED)}: "
        f"{outcome(fitted)}. Without validation queries: {outcome(unfitted)}.",
        "network": network_answer(past),
        "nothing": nothing_answer(values, past, unseen),
    }


def network_answer(values: Values) -> str:
    """Whether a trained network is worth it."""
    start, control, network = NETWORKS
    measured = {name: table for name, table in values.items() if network in table}
    if not measured:
        return "Not measured."
    gain, edges = (compared(measured, network, other) for other in (start, control))
    means = [mean(measured, name) for name in (network, start, control)]
    return (
        f"As vectors alone, with one seed, GNNEncoder has {means[0]} and the untrained GraphMean {means[1]}: "
        f"{outcome(gain)}. The same network without edges has {means[2]}; what the edges are worth: "
        f"{outcome(edges)}. Where validation does not support what was trained by one standard error, the start is "
        f"kept: {unchanged(measured, network, start)} of {len(measured)} collections."
    )


def unchanged(values: Values, system: str, start: str) -> int:
    """The number of collections on which a trained system is its start."""
    return sum(bool((table[system] == table[start]).all()) for table in values.values())


def nothing_answer(values: Values, past: Values, unseen: Values) -> str:
    """Where nothing is gained, and what is lost at most."""
    all_of_it = compared(values, INDEX, RIVAL).by_collection
    fitted = compared(past, INDEX + FITTED, RIVAL_EVIDENCE + FITTED).by_collection
    level = [NAMES[name] for name, number in all_of_it.items() if abs(number) < 0.005]
    texts = [
        f"Without past queries GraphIndex is within 0.005 of the rival on {', '.join(level) or 'none'}",
        f"its largest loss is {lowest(all_of_it)}, with past queries {lowest(fitted)}",
    ]
    if unseen:
        tested = compared(unseen, INDEX, RIVAL)
        fair = compared(unseen, INDEX, RIVAL_EVIDENCE)
        texts.append(
            f"on {', '.join(NAMES[name] for name in unseen)}, on which no default was chosen, the difference is "
            f"{tested}, with the same evidence {fair}"
        )
    return "; ".join(texts) + "."


def outcome(tested: Difference) -> str:
    """A difference in words."""
    of = len(tested.by_collection)
    return f"{tested.mean:+.3f}, significantly better on {len(tested.better)} of {of} and worse on {len(tested.worse)}"


def largest(tested: Difference, count: int = 2) -> str:
    """The collections with the largest differences."""
    best = sorted(tested.by_collection.items(), key=lambda item: -item[1])[:count]
    return " and ".join(f"{NAMES[name]} ({number:+.3f})" for name, number in best)


def lowest(by_collection: Mapping[str, float]) -> str:
    """The smallest difference and its collection."""
    name = min(by_collection, key=lambda key: by_collection[key])
    return f"{by_collection[name]:+.3f} ({NAMES[name]})"


if __name__ == "__main__":
    main()
