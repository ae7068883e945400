"""The systems that are measured, and which of them differ by one mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from experiments.ablation_parts.systems import Search, Vector

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHARES = (0.1, 0.2, 0.3)
VECTORS, HYBRID = "vectors", "hybrid"
BM25, RIVAL, CHOSEN, TODAY = "BM25", "rival", "chosen", "today"
RIVAL_FITTED, CHOSEN_FITTED, TODAY_FITTED = (f"{name}, fitted" for name in (RIVAL, CHOSEN, TODAY))
DEFAULT, DEFAULT_FITTED = "new default", "new default, fitted"
CHOSEN_VECTOR = Vector(title=0.75, past=0.75)
TODAY_VECTOR = Vector(text="mixed", title=1.0, past=1.0, per_query=True, isolated="added")
EVIDENCE: dict[str, Any] = {"document": 0.3, "near": 0.3}
System = tuple[Vector, Search | None]


@dataclass(frozen=True)
class Comparison:
    """Two systems that differ by a mechanism.

    Attributes:
        mechanism: What is compared.
        with_it: Name of the system with it.
        without: Name of the system without it.
        past: Whether past queries are in the index.
    """

    mechanism: str
    with_it: str
    without: str
    past: bool = False


def weight_names(relation: str) -> dict[float, str]:
    """The systems with each fixed weight of a relation."""
    return {weight: f"{relation} {weight:g}" for weight in WEIGHTS}


def vectors(*, past: bool, plain: bool, windows: bool, around: bool = False) -> dict[str, Vector]:
    """Vectors of passages, by name; ``plain`` ones need the texts alone to be encoded."""
    base = CHOSEN_VECTOR if past else replace(CHOSEN_VECTOR, past=0.0)
    largest = replace(base, title=1.0, past=float(past), isolated="added")
    found = {CHOSEN: base, RIVAL: Vector()}
    found |= {name: replace(base, title=weight) for weight, name in weight_names("title").items()}
    found["per query"] = replace(largest, per_query=True)
    for title in (0.5, 0.75, 1.0):
        found[f"mean {title:g}"] = replace(base, title=title, form="mean")
        normal = replace(base, title=title, form="mean", normalize=True)
        found[f"normalized mean {title:g}"] = normal
    for shared in ("shared", "smooth"):
        found[f"{shared} titles"] = replace(base, shared=shared)
    for weight in (0.1, 0.2, 0.4):
        found[f"vectors of neighbors {weight:g}"] = replace(base, order=weight)
        found[f"vector of the document {weight:g}"] = replace(base, document=weight)
    if plain:
        found["titles read twice"] = replace(base, text="mixed")
        found["titles not read"] = replace(base, text="plain")
        found[TODAY] = replace(TODAY_VECTOR, past=float(past))
    if around:
        found |= {f"read {text}": replace(base, text=text) for text in ("before", "around")}
    if windows:
        found["five windows"] = replace(base, windows=5)
    if past:
        found |= {n: replace(base, past=weight) for weight, n in weight_names("past").items()}
        for share in ("added", 0.0, 0.1, 0.25, 0.5):
            found[f"isolated {share}"] = replace(base, isolated=share)
        found["isolated 0, past 0.25"] = replace(base, isolated=0.0, past=0.25)
    return found


def searches(*, past: bool) -> dict[str, Search]:
    """Searches, by what is added to the name of a vector."""
    found = {"": Search()}
    found |= {f", {how}": Search(how=how) for how in ("min-max", "rrf")}
    found[", rrf, alpha 0.5"] = Search(how="rrf", alpha=0.5)
    found |= {f", depth {depth}": Search(depth=depth) for depth in (100, 300)}
    found |= {f", alpha {alpha:g}": Search(alpha=alpha) for alpha in (0.4, 0.5, 0.7, 0.8)}
    for share in (*SHARES, 0.5):
        found[f", document {share:g}"] = Search(document=share)
        found[f", near {share:g}"] = Search(near=share)
        found[f", evidence {share:g}"] = Search(document=share, near=share)
    found[", careful"] = Search(careful=True)
    found[", evidence 0.3, careful"] = Search(**EVIDENCE, careful=True)
    found[", evidence 0.3, spread"] = Search(**EVIDENCE, spread=True)
    found |= {f", feedback {weight:g}": Search(feedback=weight) for weight in (0.2, 0.5)}
    if past:
        for fit in ("se", "best"):
            found[f", fitted {fit}"] = Search(fit=fit)
            found[f", evidence 0.3, fitted {fit}"] = Search(fit=fit, **EVIDENCE)
        found[", evidence 0.3, fitted left out"] = Search(fit="left out", **EVIDENCE)
        found[", share and document fitted left out"] = Search(
            fit="left out", fitted=("alpha", "document")
        )
        found[", share and document fitted se"] = Search(fit="se", fitted=("alpha", "document"))
        found[", share and document fitted best"] = Search(fit="best", fitted=("alpha", "document"))
    return found


def systems(
    *, past: bool, plain: bool, windows: bool, around: bool = False
) -> Iterator[tuple[str, str, System]]:
    """All systems: ``'vectors'`` or ``'hybrid'``, name, and what it is."""
    yield HYBRID, BM25, (Vector(), Search(alpha=0.0))
    made = vectors(past=past, plain=plain, windows=windows, around=around)
    for name, vector in made.items():
        yield VECTORS, name, (vector, None)
        yield HYBRID, name, (vector, Search())
    for name in (CHOSEN, RIVAL):
        for added, search in searches(past=past).items():
            if added:
                yield HYBRID, f"{name}{added}", (made[name], search)
    if past:
        search = Search(fit="se", **EVIDENCE)
        for name in ("isolated 0.0", "isolated 0.25", "past 0"):
            yield HYBRID, f"{name}, evidence 0.3, fitted se", (made[name], search)
    if plain and past:
        yield HYBRID, f"{TODAY}, fitted se", (made[TODAY], Search(fit="se"))


COMPARISONS = (
    Comparison("today's whole default", TODAY, CHOSEN),
    Comparison("today's whole default", TODAY, CHOSEN, past=True),
    Comparison("1 weights per query", "per query", CHOSEN),
    Comparison("1 weights per query", "per query", CHOSEN, past=True),
    Comparison("1 any weight of titles", CHOSEN, "title 0"),
    Comparison("1 any weight of past queries", CHOSEN, "past 0", past=True),
    Comparison("2 what a passage lacks, not the mean", CHOSEN, "mean 0.75"),
    Comparison("2 what a passage lacks, not the normalized sum", CHOSEN, "normalized mean 0.75"),
    Comparison("3 titles read twice", "titles read twice", CHOSEN),
    Comparison("4 titles above one passage do not count", "shared titles", CHOSEN),
    Comparison("5 five windows", "five windows", CHOSEN),
    Comparison("6 beta of isolated passages", CHOSEN, "isolated 0.0", past=True),
    Comparison(
        "6 beta of isolated passages, fitted",
        f"{CHOSEN}, evidence 0.3, fitted se",
        "isolated 0.0, evidence 0.3, fitted se",
        past=True,
    ),
    Comparison(
        "6 beta estimated, not 0.25, fitted",
        f"{CHOSEN}, evidence 0.3, fitted se",
        "isolated 0.25, evidence 0.3, fitted se",
        past=True,
    ),
    Comparison("6 beta, as today: added", "isolated added", CHOSEN, past=True),
    *(
        Comparison(f"7 evidence {share:g} of each", f"{CHOSEN}, evidence {share:g}", CHOSEN, past)
        for share, past in ((0.3, False), (0.3, True))
    ),
    Comparison(
        "7 fitted from evidence 0.3",
        f"{CHOSEN}, evidence 0.3, fitted se",
        f"{CHOSEN}, evidence 0.3",
        True,
    ),
    Comparison(
        "7 one standard error, not the best mean",
        f"{CHOSEN}, evidence 0.3, fitted se",
        f"{CHOSEN}, evidence 0.3, fitted best",
        True,
    ),
    Comparison("8 z-scores, not min-max", CHOSEN, f"{CHOSEN}, min-max"),
    Comparison("8 z-scores, not reciprocal ranks", CHOSEN, f"{CHOSEN}, rrf, alpha 0.5"),
    Comparison("8 depth 1,000, not 100", CHOSEN, f"{CHOSEN}, depth 100"),
    Comparison("beyond: read after a sentence of the passage before", "read before", CHOSEN),
    Comparison("beyond: read after sentences of both neighbors", "read around", CHOSEN),
    Comparison(
        "beyond: evidence finds passages",
        f"{CHOSEN}, evidence 0.3, spread",
        f"{CHOSEN}, evidence 0.3",
    ),
    Comparison("beyond: feedback 0.2 of the three best", f"{CHOSEN}, feedback 0.2", CHOSEN),
    Comparison("beyond: vectors of neighbors 0.2", "vectors of neighbors 0.2", CHOSEN),
    Comparison("beyond: vector of the document 0.2", "vector of the document 0.2", CHOSEN),
)
