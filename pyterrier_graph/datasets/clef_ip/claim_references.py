"""Finds the claims that a text refers to, in English, German and French."""

import re
from collections.abc import Collection

# Texts are in lower case. Searching for a hint is faster than trying an expression that does not match.
_HINTS = ("claim", "anspr", "revendication")
_ANSPRUCH, _ANSPRUECHE = r"(?:patent)?anspruch(?:es|s|e)?", r"(?:patent)?anspr(?:ü|ue)che[ns]?"
_CLAIM = rf"\b(?:claims?|{_ANSPRUCH}|{_ANSPRUECHE}|revendications?)"
_UNIT = r"(?! ?(?:%|°|(?:[kcmnµμ]?[mgl]|percent|parts?|wt)\b))"
_NUMBER = rf"[(\[]?(?<!\d)\d{{1,4}}(?!\.?\d){_UNIT}[)\]]?"
_RANGE = r"(?:-|–|—|to\b|through\b|up to\b|bis\b|à|jusqu'à)"
_ALSO = r"(?:and ?/ ?or|und ?/ ?oder|et ?/ ?ou|and|or|und|oder|sowie|et|ou|&|/|,|;)"
_LIST = re.compile(
    rf"{_CLAIM} ?(?:nos?\.? ?|nr\.? ?|n° ?)?({_NUMBER}(?: ?(?:, ?{_ALSO}|{_ALSO}|{_RANGE}) ?{_NUMBER})*)"
)
_SPAN = re.compile(rf"(\d+)[)\]]?(?: ?{_RANGE} ?[(\[]?(\d+))?")

_HINTS_BEFORE = (
    *("preced", "previous", "forego", "prior", "earlier", "above"),
    *("vorh", "vora", "vorst", "vorg", "vorig", "obig"),
    *("préc", "antérieur", "ci-dessus"),
)
_EN = r"(?:preceding|previous|foregoing|prior|earlier|above)"
_DE = r"(?:vor(?:hergehend|hergegangen|herig|angehend|angegangen|stehend|genannt|ig)|obig)e[nrms]?"
_FR = r"(?:(?:qui )?pr[ée]c[éèe]d(?:ent|ente)s?|antérieure?s?|ci-dessus)"
_ALL_BEFORE = re.compile(
    rf"\b{_EN} claims\b|\b(?:any|either|each|every)(?: one)?(?: of the)? {_EN} claim\b"
    rf"|\b{_DE} {_ANSPRUECHE}|\b(?:irgend)?(?:einem|jedem) (?:der )?{_DE} {_ANSPRUCH}"
    rf"|\brevendications {_FR}|\b{_FR} revendications\b|\b(?:une|toute|quelle) revendication {_FR}"
)
_ONE_BEFORE = re.compile(rf"\b{_EN} claim\b|\b{_DE} {_ANSPRUCH}|\brevendication {_FR}")


def claim_references(text: str, claims: Collection[int], own: int | None = None) -> list[int]:
    """The numbers of the claims that a text refers to, ascending, among all ``claims`` of the patent.

    A reference is a number, a list or a range ("claim 3", "Ansprüche 1 bis 4", "revendications 1, 2 ou 5"). If the text
    is the claim with the number ``own``, "any of the preceding claims" and "la revendication précédente" are references
    too, and references to the claim itself are left out.
    """
    text = text.lower()
    if not any(hint in text for hint in _HINTS):
        return []
    text = " ".join(text.split())
    found: set[int] = set()
    for numbers in _LIST.findall(text):
        for first, last in _SPAN.findall(numbers):
            low, high = sorted((int(first), int(last or first)))
            found |= {low} if low == high else {claim for claim in claims if low <= claim <= high}
    if own is not None and any(hint in text for hint in _HINTS_BEFORE):
        before = [claim for claim in claims if claim < own]
        if _ALL_BEFORE.search(text):
            found.update(before)
        elif before and _ONE_BEFORE.search(text):
            found.add(max(before))
    return sorted(found.intersection(claims) - {own})
