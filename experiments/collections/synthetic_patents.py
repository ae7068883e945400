"""Made-up patents of realistic size, as many as are asked for.

The words mean nothing. Their frequencies fall as those of a language do, so that the texts compress about as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyterrier as pt

from pyterrier_graph.documents import NO_PARENT, PASSAGE, SECTION, Link, Node, Reference

VOCABULARY = 30_000
SNIPPETS = 4096  # of half a paragraph: so there are 16 million paragraphs
PARAGRAPHS = (40, 60)
SNIPPET_WORDS = (40, 60)
CLAIMS = (8, 22)
CITATIONS = 6
IN_COLLECTION = 0.6
SUBCLASSES = [
    f"{section}{number:02d}{letter}" for section in "ABCDEFGH" for number in range(1, 17) for letter in "BCDGK"
]
HEADINGS = ("TECHNICAL FIELD", "BACKGROUND ART", "SUMMARY", "BRIEF DESCRIPTION OF THE DRAWINGS", "EMBODIMENTS")


class SyntheticPatent(NamedTuple):
    """A patent.

    Attributes:
        ucid: ``EP-0000001-A1`` and so on.
        title: Some words.
        abstract: A paragraph.
        description: Paragraphs under each of :data:`HEADINGS`.
        claims: Their texts.
        targets: The claim, counted from 0, that the claim at this position refers to; None if to none.
        citations: ucids of earlier patents, and some that do not exist.
        codes: IPC codes, ``H04N5/22``.
    """

    ucid: str
    title: str
    abstract: str
    description: list[list[str]]
    claims: list[str]
    targets: list[int | None]
    citations: list[str]
    codes: list[str]


def synthetic_patents(count: int, *, seed: int = 0) -> Iterator[SyntheticPatent]:
    """Patents of about 5,000 words: an abstract, 40 to 60 paragraphs of 80 to 120 words, 8 to 22 claims.

    Args:
        count: How many; a smaller number gives the first ones of a larger number.
        seed: Of the random numbers.
    """
    snippets = snippets_of(np.random.default_rng(seed))
    return (_patent(number, snippets, np.random.default_rng((seed, number))) for number in range(count))


def synthetic_records(count: int, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """The same patents as records that :meth:`pyterrier_graph.documents.StructuredDocument.from_record` reads.

    Sections and relations are those of the CLEF-IP reader: abstract, description with headings, and claims; claims
    refer to claims, patents to patents.
    """
    for patent in synthetic_patents(count, seed=seed):
        nodes = [
            Node(SECTION, patent.title, NO_PARENT),
            Node(SECTION, "Abstract", 0),
            Node(PASSAGE, patent.abstract, 1),
        ]
        nodes.append(Node(SECTION, "Description", 0))
        for heading, paragraphs in zip(HEADINGS, patent.description, strict=True):
            section = len(nodes)
            nodes.append(Node(SECTION, heading, 3))
            nodes += [Node(PASSAGE, paragraph, section) for paragraph in paragraphs]
        section = len(nodes)
        nodes.append(Node(SECTION, "Claims", 0))
        nodes += [Node(PASSAGE, claim, section) for claim in patent.claims]
        first = section + 1
        yield {
            "docno": patent.ucid,
            "nodes": nodes,
            "links": [
                Link("internal", first + claim, first + target)
                for claim, target in enumerate(patent.targets)
                if target is not None
            ],
            "references": [Reference("external", 0, cited) for cited in patent.citations],
            "codes": [form for code in patent.codes for form in (code[:4], code)],
        }


def write_xml_tree(folder: Path, count: int, *, seed: int = 0) -> int:
    """Writes the same patents as XML files in the tree layout of CLEF-IP.

    Args:
        folder: Folder of the documents; it will hold ``EP/000000/00/00/01/EP-0000001-A1.xml`` and so on.
        count: How many.
        seed: Of the random numbers.

    Returns:
        Bytes written.
    """
    size = 0
    for patent in pt.tqdm(synthetic_patents(count, seed=seed), total=count, desc="writing patents", unit="file"):
        number = patent.ucid[3:10]
        place = folder / "EP" / f"{number[:1]:0>6}" / number[1:3] / number[3:5] / number[5:]
        place.mkdir(parents=True, exist_ok=True)
        size += (place / f"{patent.ucid}.xml").write_bytes(_xml(patent, number).encode())
    return size


def snippets_of(random: np.random.Generator) -> list[str]:
    """Halves of paragraphs, of words whose frequency is about inverse to their rank."""
    letters = np.array([*"etaoinshrdlcumwfgypb"])
    lengths = random.integers(2, 11, VOCABULARY)
    spelled = "".join(letters[(len(letters) * random.random(lengths.sum()) ** 1.7).astype(int)])
    ends = np.cumsum(lengths).tolist()
    words = np.array([spelled[begin:end] for begin, end in zip([0, *ends], ends, strict=False)], dtype=object)
    weights = 1 / (np.arange(VOCABULARY) + 2.7)
    sizes = random.integers(SNIPPET_WORDS[0], SNIPPET_WORDS[1] + 1, SNIPPETS)
    drawn = words[random.choice(VOCABULARY, sizes.sum(), p=weights / weights.sum())].tolist()
    ends = np.cumsum(sizes).tolist()
    return [" ".join(drawn[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def _patent(number: int, snippets: list[str], random: np.random.Generator) -> SyntheticPatent:
    """The patent of this number."""

    def text() -> str:
        return snippets[random.integers(SNIPPETS)]

    paragraphs = [f"{text()} {text()}." for _ in range(random.integers(PARAGRAPHS[0], PARAGRAPHS[1] + 1))]
    borders = [len(paragraphs) * part // len(HEADINGS) for part in range(len(HEADINGS) + 1)]
    # One claim in eight is independent; the others refer to an earlier one, mostly to one of the first.
    places = random.random(random.integers(CLAIMS[0], CLAIMS[1] + 1))
    chosen = [(int(8 * place**2 * claim / 7), claim) for claim, place in enumerate(places)]
    targets = [target if target < claim else None for target, claim in chosen]
    classes = [int(len(SUBCLASSES) * place**2) for place in random.random(random.integers(1, 5))]
    abstract = f"{text()} {text()}."
    return SyntheticPatent(
        _ucid(number),
        " ".join(abstract.split(" ", 8)[:8]),
        abstract,
        [paragraphs[begin:end] for begin, end in zip(borders, borders[1:], strict=False)],
        [f"A device {_reference(target)}with {text()}." for target in targets],
        targets,
        [_cited(place, number) for place in random.random(random.poisson(CITATIONS))],
        [f"{SUBCLASSES[place]}{random.integers(1, 100)}/00" for place in classes],
    )


def _reference(claim: int | None) -> str:
    return "" if claim is None else f"according to claim {claim + 1}, "


def _ucid(number: int) -> str:
    return f"EP-{number + 1:07d}-A1"


def _cited(place: float, number: int) -> str:
    """An earlier patent, or one that is not in the collection."""
    if place < IN_COLLECTION and number:
        return _ucid(int(place / IN_COLLECTION * number))
    return f"US-{int(place * 5e6) + 1}-A"


def _xml(patent: SyntheticPatent, number: str) -> str:
    """The file of a patent; no text needs escaping."""
    tail = "        20060101A I20051008RMEP</classification-ipcr>\n"
    ipcr = "".join(f'<classification-ipcr status="new">{code[:4]}  {code[4:]}{tail}' for code in patent.codes)
    citations = "".join(f'<patcit ucid="{cited}" load-source="docdb"/>\n' for cited in patent.citations)
    paragraph = iter(range(1, 1000))
    description = "".join(
        f"<heading>{heading}</heading>\n" + "".join(f'<p num="{next(paragraph):04d}">{text}</p>\n' for text in texts)
        for heading, texts in zip(HEADINGS, patent.description, strict=True)
    )
    claims = "".join(
        f'<claim num="{claim}"><claim-text>{text}</claim-text></claim>\n' for claim, text in enumerate(patent.claims, 1)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<patent-document ucid="{patent.ucid}" country="EP" doc-number="{number}" kind="A1" lang="EN" '
        f'family-id="{number}" status="new" date-produced="20090516" date="19990101">\n'
        '<bibliographic-data>\n<technical-data status="new">\n'
        f"<classifications-ipcr>\n{ipcr}</classifications-ipcr>\n"
        f'<invention-title lang="EN" load-source="ep" status="new">{patent.title}</invention-title>\n'
        f"<citations>\n<patent-citations>\n{citations}</patent-citations>\n</citations>\n"
        "</technical-data>\n</bibliographic-data>\n"
        f'<abstract lang="EN" load-source="ep" status="new">\n<p>{patent.abstract}</p>\n</abstract>\n'
        f'<description lang="EN" load-source="ep" status="new">\n{description}</description>\n'
        f'<claims lang="EN" load-source="ep" status="new">\n{claims}</claims>\n'
        "</patent-document>\n"
    )
