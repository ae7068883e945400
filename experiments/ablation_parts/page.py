"""The page of results, from the measure of each query with each system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from experiments.ablation_parts.mechanisms import (
    BM25,
    CHOSEN,
    COMPARISONS,
    HYBRID,
    RIVAL,
    VECTORS,
    Comparison,
    weight_names,
)

LEVEL, WORTH = 0.05, 0.005  # of significance; what a mechanism must be worth
PROSE = Path(__file__).with_name("page.md")
SHORT = {
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
EVIDENCE = f"{CHOSEN}, evidence 0.3"
ROWS = {
    False: [
        (HYBRID, BM25),
        (VECTORS, RIVAL),
        (VECTORS, CHOSEN),
        (HYBRID, RIVAL),
        (HYBRID, CHOSEN),
        (HYBRID, EVIDENCE),
    ],
    True: [
        (HYBRID, RIVAL),
        (HYBRID, f"{RIVAL}, share and document fitted se"),
        (HYBRID, CHOSEN),
        (HYBRID, EVIDENCE),
        (HYBRID, f"{EVIDENCE}, fitted se"),
    ],
}
CHOICES: Mapping[str, tuple[bool, Mapping[float, str], float]] = {
    "weight of titles": (False, weight_names("title"), 0.75),
    "weight of past queries": (True, weight_names("past"), 0.75),
    "evidence, of each": (
        False,
        {0.0: CHOSEN} | {share: f"{CHOSEN}, evidence {share:g}" for share in (0.1, 0.2, 0.3, 0.5)},
        0.3,
    ),
    "share of vectors": (
        False,
        {0.6: CHOSEN} | {alpha: f"{CHOSEN}, alpha {alpha:g}" for alpha in (0.4, 0.5, 0.7, 0.8)},
        0.6,
    ),
}


class Set(NamedTuple):
    """An encoder, and full collections or samples."""

    encoder: str
    size: str

    def __str__(self) -> str:
        name = "mpnet" if "mpnet" in self.encoder else "MiniLM"
        return f"{name}, {'samples' if self.size == 'sample' else 'full'}"


Values = Mapping[str, pd.Series]  # by collection, the measure of each query


class Measured:
    """The measure of each query by system, of one set of runs.

    Args:
        values: ``collection, past, part, name, qid, value``.
    """

    def __init__(self, values: pd.DataFrame) -> None:
        keys = ["past", "part", "name", "collection"]
        self._values = {key: part.set_index("qid")["value"] for key, part in values.groupby(keys)}
        present = set(values["collection"])
        self.collections = [name for name in SHORT if name in present]

    def __call__(self, past: bool, part: str, name: str) -> Values:
        """The measure of each query, by collection; those where the system was not measured are left out."""
        keys = {each: (past, part, name, each) for each in self.collections}
        return {each: self._values[key] for each, key in keys.items() if key in self._values}


class Difference(NamedTuple):
    """How much better a system is than another one."""

    mean: float  # over collections, of the mean over queries
    better: (
        int  # collections where it is significantly better, with Holm's correction over collections
    )
    worse: int
    collections: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.better}/{self.worse})" if self.collections else ""


def holm(values: Sequence[float]) -> np.ndarray:
    """P-values with Holm's correction."""
    order = np.argsort(values)
    scaled = np.asarray(values)[order] * np.arange(len(values), 0, -1)
    found = np.empty(len(values))
    found[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return found


def marks(system: Values, other: Values) -> dict[str, str]:
    """``+`` or ``-`` by collection, where a system is significantly better or worse."""
    common = [name for name in system if name in other]
    pairs = [(system[name], other[name].reindex(system[name].index)) for name in common]
    levels = holm([1.0 if (a == b).all() else float(ttest_rel(a, b).pvalue) for a, b in pairs])
    signs = ["+" if a.mean() > b.mean() else "-" for a, b in pairs]
    return {
        name: sign if level < LEVEL else ""
        for name, sign, level in zip(common, signs, levels, strict=True)
    }


def difference(system: Values, other: Values) -> Difference:
    """How much better a system is than another one, over the collections where both were measured."""
    common = [name for name in system if name in other]
    if not common:
        return Difference(0.0, 0, 0, 0)
    found = [*marks(system, other).values()]
    mean = float(np.mean([system[name].mean() - other[name].mean() for name in common]))
    return Difference(mean, found.count("+"), found.count("-"), len(common))


def kept(differences: Iterable[Difference]) -> bool:
    """The rule: worth 0.005 in all runs, or significantly better on two collections and worse on none."""
    measured = [each for each in differences if each.collections]
    worth = all(each.mean >= WORTH for each in measured)
    better = any(each.better >= 2 for each in measured)
    return bool(measured) and (worth or (better and not any(each.worse for each in measured)))


def elsewhere(measured: Measured, past: bool, names: Mapping[float, str]) -> tuple[float, str]:
    """A number chosen on all other collections: the mean that it reaches, and the numbers that are chosen.

    Collections with the same documents are never elsewhere for one another.
    """
    found = {number: measured(past, HYBRID, name) for number, name in names.items()}
    means = pd.DataFrame({n: {c: v.mean() for c, v in of.items()} for n, of in found.items()})
    reached, chosen = [], []
    for name in means.index:
        others = [other for other in means.index if other.split("-")[0] != name.split("-")[0]]
        number = float(means.loc[others].mean().idxmax())
        reached.append(means.at[name, number])
        chosen.append(number)
    counts = pd.Series(chosen).value_counts().sort_index()
    return float(np.mean(reached)), ", ".join(f"{n:g}: {c}" for n, c in counts.items())


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    head, *body = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return [head, "|" + "---|" * len(header), *body, ""]


def overview(measured: Measured, label: str) -> list[str]:
    """A row per system, a column per collection: first without past queries, then with them."""
    rows = []
    for past, systems in ROWS.items():
        rival = measured(past, HYBRID, RIVAL)
        for part, name in systems:
            values = measured(past, part, name)
            if set(values) != set(rival):
                continue
            signs = marks(values, rival) if (part, name) != (HYBRID, RIVAL) else {}
            cells = [
                f"{values[each].mean():.3f}{signs.get(each, '')}" if each in values else ""
                for each in measured.collections
            ]
            mean = np.mean([value.mean() for value in values.values()])
            title = name if name == BM25 else f"{part}: {name}"
            rows.append([f"{title}{', past queries' if past else ''}", *cells, f"{mean:.3f}"])
    return table([label, *(SHORT[name] for name in measured.collections), "mean"], rows)


def compared(sets: Mapping[Set, Measured], comparison: Comparison) -> list[str]:
    """A row of the table of mechanisms."""
    cells, hybrid = [], []
    for measured in sets.values():
        pair = []
        for part in (HYBRID, VECTORS):
            both = [
                measured(comparison.past, part, name)
                for name in (comparison.with_it, comparison.without)
            ]
            pair.append(difference(*both))
        hybrid.append(pair[0])
        cells += [*map(str, pair)]
    label = f"{comparison.mechanism}{', past queries' if comparison.past else ''}"
    return [label, *cells, "keep" if kept(hybrid) else "delete"]


def written(values: pd.DataFrame) -> str:
    """The page: its prose is in ``page.md``, with the names of tables in braces."""
    named = values[values["collection"].isin(SHORT)]
    sets = {
        Set(*key): Measured(part)
        for key, part in sorted(named.groupby(["encoder", "size"]), key=lambda item: item[0])
    }
    largest = {each.encoder: each for each in reversed(sets)}  # full, where there are such runs
    main = {each: measured for each, measured in sets.items() if each in largest.values()}
    overviews = []
    for each, measured in main.items():
        overviews += overview(measured, str(each))
    header = ["mechanism"] + [f"{s}, {part}" for s in sets for part in (HYBRID, VECTORS)] + ["rule"]
    mechanisms = table(header, [compared(sets, comparison) for comparison in COMPARISONS])
    parts = {
        "sizes": table(["passages / test queries", *SHORT.values()], sizes(named)),
        "overviews": overviews,
        "mechanisms": mechanisms,
        "elsewhere": chosen_elsewhere(main),
        "goals": goals(main),
        "languages": languages(values),
    }
    text = PROSE.read_text(encoding="utf-8")
    for name, lines in parts.items():
        text = text.replace(f"{{{name}}}", "\n".join(lines).strip())
    return text


def sizes(values: pd.DataFrame) -> list[list[str]]:
    """Passages and test queries of each collection."""
    rows = []
    for size, part in values.groupby("size"):
        of = part.groupby("collection")
        cells = {
            name: f"{each['passages'].iloc[0]:,} / {each['qid'].nunique()}" for name, each in of
        }
        label = "samples" if size == "sample" else "full"
        rows.append([label, *(cells.get(name, "") for name in SHORT)])
    return rows


def chosen_elsewhere(sets: Mapping[Set, Measured]) -> list[str]:
    """The numbers that the other collections choose, and what they reach."""
    rows = []
    for label, (past, names, default) in CHOICES.items():
        cells = []
        for measured in sets.values():
            reached, counts = elsewhere(measured, past, names)
            fixed = measured(past, HYBRID, names[default])
            mean = np.mean([values.mean() for values in fixed.values()])
            cells += [f"{mean:.3f}", f"{reached:.3f}", counts]
        rows.append([label, f"{default:g}", *cells])
    columns = ("the default", "chosen elsewhere", "numbers: collections")
    header = ["number", "default", *(f"{each}, {column}" for each in sets for column in columns)]
    return table(header, rows)


def goals(sets: Mapping[Set, Measured]) -> list[str]:
    """The default against the rival."""
    rows = []
    for each, measured in sets.items():
        document = f"{RIVAL}, share and document fitted"
        pairs = [
            ("no past queries", False, EVIDENCE, RIVAL),
            ("no past queries, both with evidence", False, EVIDENCE, f"{RIVAL}, evidence 0.3"),
            (
                "past queries, fitted on validation",
                True,
                f"{EVIDENCE}, fitted se",
                f"{document} se",
            ),
            (
                "past queries, fitted on those left out",
                True,
                f"{EVIDENCE}, fitted left out",
                f"{document} left out",
            ),
        ]
        for label, past, ours, theirs in pairs:
            system, rival = measured(past, HYBRID, ours), measured(past, HYBRID, theirs)
            if not set(system) == set(rival) or not system:
                continue
            found = difference(system, rival)
            mean, other = (np.mean([v.mean() for v in side.values()]) for side in (system, rival))
            cells = f"{mean:.3f}", f"{other:.3f}", str(found)
            lowest = min((system[n].mean() - rival[n].mean(), SHORT[n]) for n in system)
            rows.append([str(each), label, *cells, f"{lowest[0]:+.3f} {lowest[1]}"])
    return table(["runs", "", "default", "rival", "difference", "lowest"], rows)


def languages(values: pd.DataFrame) -> list[str]:
    """What is lost where the encoder does not know the letters."""
    rows = []
    titles = values[~values["past"] & (values["size"] == "sample")]
    titles = titles[titles["encoder"].str.contains("MiniLM")]
    names = {
        (HYBRID, BM25): "BM25",
        (VECTORS, CHOSEN): "vectors",
        (HYBRID, CHOSEN): "hybrid",
        (HYBRID, f"{CHOSEN}, careful"): "hybrid, careful",
    }
    titles = titles[titles["collection"].str.contains(",")]
    for name, part in titles.groupby("collection"):
        means = part.groupby(["part", "name"])["value"].mean()
        alike = part["alike"].iloc[0]
        cells = [f"{means.get(key, np.nan):.3f}" for key in names]
        collection, _, other = name.partition(",")
        label = f"{SHORT[collection]}{',' * bool(other)}{other}"
        rows.append([label, f"{alike:.2f}", *cells])
    return table(["MiniLM, samples", "mean cosine", *names.values()], rows)
