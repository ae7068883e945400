"""A miniature CLEF-IP collection in the formats of the real one; its patents are made up, and say something.

:func:`write_miniature` writes documents, topics and judgments. An *invention* is a field of technology and three of
its parts. A topic's claims are about one invention, and relevant are the passages of patents of the same invention that
are about these three parts; patents of the field that differ in their parts are beside them.
Nothing here knows the package's readers, so that each can check the other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from clef_ip_patents import (
    SAME_APPLICATION,
    TOPIC_LANGUAGES,
    Patent,
    Split,
    Version,
    has_doctype,
    make_patents,
    make_version,
    odd_cases,
    write_content,
)
from clef_ip_vocabulary import LANGUAGES, THEMES
from lxml import etree

Layout = Literal["tree", "folders"]
QrelsVariant = Literal["comma", "trec", "plain"]


class SplitFiles(NamedTuple):
    """Where the files of a split lie under the home folder; ``{}`` in the qrels stands for the language."""

    topics: str
    topic_documents: str
    qrels: str
    variant: QrelsVariant


DOCUMENTS = "documents"
FAMILY_DOCUMENTS = "clef-ip-2013-clms-psg-TEST/tfam-docs"
# The names of 2013 are the real ones with all their misprints, those of 2012 follow their pattern.
SPLITS: dict[Split, SplitFiles] = {
    "2012/train": SplitFiles(
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-topics.txt",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-tfile",
        "clef-ip-2012-clms-psg-training/clef-ip-2012-clms-psg-training-qrels.txt",
        "plain",
    ),
    "2012/test": SplitFiles(
        "clef-ip-2012-clms-psg-TEST/clef-ip-2012-clms-psg-TEST.txt",
        "clef-ip-2012-clms-psg-TEST/tfiles",
        "2012-clef-ip-clsm-to-psg-qrels/2012-clef-ip-QRELS-{}-claims-to-passages.txt",
        "comma",
    ),
    "2013/train": SplitFiles(
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-topics.txt",
        "clef-ip-2013-clms-psg-training/clef-ip-2013-clms-psg-training-tfile",
        "clef-ip-2013-clms-psg-training/clef-ip-2103-clms-psg-training-qrels.txt",
        "trec",
    ),
    "2013/test": SplitFiles(
        "clef-ip-2013-clms-psg-TEST/clef-ip-2013-clms-psg-TEST.txt",
        "clef-ip-2013-clms-psg-TEST/tfiles",
        "2013-clef-ip-clsm-to-psg-qrels/2013-clef-ip-QRELS-{}-claims-to-passages.txt",
        "comma",
    ),
}
DOCTYPE = (
    '<!DOCTYPE patent-document PUBLIC "-//MXW//DTD patent-document XML//EN" '
    '"http://dtd.invalid/patents/v1.4/patent-document.dtd">\n'
)

_TOPIC_PREFIX = {"2012/train": "tPSG-", "2012/test": "PSG-", "2013/test": "PSG"}


@dataclass(frozen=True)
class Document:
    """What is in a file, as far as its own language goes.

    Attributes:
        ucid: Country, number and kind: ``EP-0968118-A1``.
        path: Its file, relative to the folder of the documents.
        language: ``EN``, ``DE`` or ``FR``.
        title: In this language.
        family: The id of its family, if it has one.
        passages: (xpath, text with white space normalized) of all paragraphs of the abstract and the description and
            of all claims that are not empty, in the order of the file; in the document's language or, for an abstract
            that there is in other languages only, in the first of these. Only the last step of an xpath has an index.
        headings: (text, number of paragraphs of the description before it).
        claim_references: (number of the claim that refers, number of the claim referred to).
        description_references: (xpath of the paragraph that refers, number of the claim referred to).
        citations: ucids of the patents cited.
        codes: IPC codes, ``F25B30/02``; the first four characters are the subclass.
    """

    ucid: str
    path: Path
    language: str
    title: str
    family: str | None
    passages: tuple[tuple[str, str], ...]
    headings: tuple[tuple[str, int], ...]
    claim_references: tuple[tuple[int, int], ...]
    description_references: tuple[tuple[str, int], ...]
    citations: tuple[str, ...]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A topic.

    Attributes:
        tid: Its id.
        split: ``2012/train``, ``2012/test`` or ``2013/test``; the first two together are also ``2013/train``.
        document: The application that it is taken from, which is not among the documents.
        claims: xpaths of its claims in the application.
        text: These claims.
        family: ucids of the application's family; empty for the topics of 2012, which do not have it.
        invention: Its field and which invention of this field; relevant are patents of the same one.
    """

    tid: str
    split: Split
    document: Document
    claims: tuple[str, ...]
    text: str
    family: tuple[str, ...]
    invention: tuple[int, int]

    @property
    def language(self) -> str:
        """The language of its application."""
        return self.document.language


class Judgment(NamedTuple):
    """A relevant passage: ``xpath`` as in :attr:`Document.passages`, ``written`` as in the qrels files."""

    topic: str
    ucid: str
    xpath: str
    written: str


@dataclass(frozen=True)
class Miniature:
    """What :func:`write_miniature` wrote.

    Attributes:
        home: The folder.
        documents: By ucid, in the order of their paths.
        topics: By id.
        judgments: All of them.
        odd: For every odd case the ucid of a document that has it.
    """

    home: Path
    documents: dict[str, Document]
    topics: dict[str, Topic]
    judgments: tuple[Judgment, ...]
    odd: dict[str, str]

    def split_topics(self, split: Split) -> list[Topic]:
        """The topics of a split, in the order of its file."""
        return [topic for topic in self.topics.values() if split in _splits(topic.split)]

    def split_judgments(self, split: Split, language: str | None = None) -> list[Judgment]:
        """The judgments of a split, of topics in one language or all."""
        topics = {topic.tid for topic in self.split_topics(split) if language in (None, topic.language)}
        return [judgment for judgment in self.judgments if judgment.topic in topics]


def write_miniature(home: Path, layout: Layout = "tree") -> Miniature:
    """Writes the collection.

    Args:
        home: The folder to write to; it is made where it does not exist.
        layout: ``'tree'``, where a patent's number is cut into five levels of folders, as in the archives, or
            ``'folders'``, one folder per patent.
    """
    documents: dict[str, Document] = {}
    judgeable: dict[tuple[int, int], list[tuple[Document, list[str]]]] = {}
    odd: dict[str, str] = {}
    for patent in make_patents():
        content = write_content(patent)
        for kind in patent.kinds:
            version = make_version(patent, kind, content)
            document = _document(version, _path(version.ucid, layout))
            _write(home / DOCUMENTS / document.path, _source(version))
            documents[document.ucid] = document
            if kind[0] == "A" or patent.position % 2:
                judgeable.setdefault((patent.theme, patent.cores[0]), []).append((document, _relevant(version)))
            for case in odd_cases(patent, kind):
                odd.setdefault(case, document.ucid)
    topics = _write_topics(home)
    judgments = tuple(
        Judgment(topic.tid, document.ucid, xpath, _as_written(document, xpath, number))
        for topic in topics.values()
        for document, relevant in judgeable[topic.invention]
        for number, xpath in enumerate(relevant)
    )
    ordered = dict(sorted(documents.items(), key=lambda item: item[1].path))
    miniature = Miniature(home, ordered, topics, judgments, odd)
    for split, files in SPLITS.items():
        _write(home / files.topics, "".join(_topic_block(topic, split) for topic in miniature.split_topics(split)))
        for language in LANGUAGES if "{}" in files.qrels else (None,):
            written = write_qrels(miniature.split_judgments(split, language), files.variant)
            _write(home / files.qrels.format(language), written)
    return miniature


def write_qrels(judgments: Iterable[Judgment], variant: QrelsVariant) -> str:
    """The text of a qrels file.

    Args:
        judgments: What it says.
        variant: ``'comma'`` (topic,document,xpath), ``'trec'`` (topic Q0 document xpath) or ``'plain'`` (topic document
            xpath).
    """
    separator = "," if variant == "comma" else " "
    middle = ["Q0"] * (variant == "trec")
    return "".join(separator.join([topic, *middle, ucid, written]) + "\n" for topic, ucid, _, written in judgments)


def _splits(split: Split) -> tuple[Split, ...]:
    return (split,) if split.startswith("2013") else (split, "2013/train")


def _text(fragment: str) -> str:
    """The text of an XML fragment, its white space normalized."""
    return " ".join("".join(etree.fromstring(f"<p>{fragment}</p>").itertext()).split())


def _claim_fragments(version: Version, language: str) -> list[str]:
    """What the claim elements in a language hold."""
    texts = version.claims[language]
    if not version.legacy:
        return [f"<claim-text>{text}</claim-text>" for text in texts]
    return ["\n".join(f"<claim-text>{number}. {text}</claim-text>" for number, text in enumerate(texts, 1))]


def _document(version: Version, path: Path) -> Document:
    """What a test may compare with what a reader finds."""
    patent, content = version.patent, version.content
    own = patent.language
    abstract = version.abstracts.get(own) or next(iter(version.abstracts.values()), [])
    paragraphs = [text for tag, text in version.description if tag == "p"]
    claims = _claim_fragments(version, own) if version.claims else []
    addressed = {
        "/patent-document/abstract/p": abstract,
        "/patent-document/description/p": paragraphs,
        "/patent-document/claims/claim": claims,
    }
    places = [place for place, (tag, _) in enumerate(version.description) if tag == "heading"]
    return Document(
        version.ucid,
        path,
        own,
        _text(content.title[own]),
        version.family,
        tuple(
            (f"{step}[{number}]", _text(fragment))
            for step, fragments in addressed.items()
            for number, fragment in enumerate(fragments, 1)
            if fragment
        ),
        tuple((_text(version.description[place][1]), place - earlier) for earlier, place in enumerate(places)),
        tuple(
            (number, target)
            for number, claim in enumerate(content.claims[: len(claims)], 1)
            for target in claim.targets
        ),
        tuple((f"/patent-document/description/p[{position}]", claim) for position, claim in content.references)
        if version.description
        else (),
        version.citations + (content.citations if version.description else ()),
        tuple(code.replace(" ", "") for code in _codes(patent)),
    )


def _relevant(version: Version) -> list[str]:
    """The xpaths of what a document says about its invention."""
    if not version.description:
        return []
    position = version.patent.position
    found = [f"/patent-document/description/p[{number}]" for number in sorted(version.content.core)]
    if position % 2 == 0 or version.legacy:
        found.append("/patent-document/claims/claim[1]")
    if position % 3 != 1 and version.patent.language in version.abstracts:
        found.append("/patent-document/abstract/p[1]")
    return found


def _as_written(document: Document, xpath: str, number: int) -> str:
    """An xpath in one of the ways that qrels have; all of them mean the document's own language."""
    if xpath.startswith("/patent-document/abstract") and document.language == "EN":
        return ("/patent-document/abstract/p", "/patent-document/abstract[1]/p[1]")[number % 2]
    only_claim = not any(other.startswith("/patent-document/claims/claim[2") for other, _ in document.passages)
    return xpath.replace("[1]", "") if only_claim and "claims" in xpath else xpath


def _path(ucid: str, layout: Layout) -> Path:
    """Where the file of a document lies."""
    country, digits, _ = ucid.split("-")
    if layout == "folders":
        return Path(country, f"{country}-{digits}", f"{ucid}.xml")
    folders = [digits[-6:-4], digits[-4:-2], digits[-2:]]
    return Path(country, digits[:-6].zfill(6), *folders, f"{ucid}.xml")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _source(version: Version) -> str:
    """The XML of a document."""
    patent, ucid = version.patent, version.ucid
    country, number, kind = ucid.split("-")
    unmarked = "no_section_language" in patent.odd and kind != "B1"
    origin = 'load-source="ep" status="new"'

    def section(name: str, language: str, elements: Iterable[str]) -> str:
        attribute = "" if unmarked else f'lang="{language}" '
        return "\n".join([f"<{name} {attribute}{origin}>", *elements, f"</{name}>"])

    sections = [
        section("abstract", language, (f"<p>{text}</p>" for text in texts))
        for language, texts in version.abstracts.items()
    ]
    if version.description:
        sections.append(section("description", patent.language, _description(version)))
    for language in version.claims:
        fragments = enumerate(_claim_fragments(version, language), 1)
        sections.append(section("claims", language, (f'<claim num="{n}">{text}</claim>' for n, text in fragments)))
    family = f' family-id="{version.family}"' if version.family else ""
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            *[DOCTYPE] * has_doctype(patent),
            f'<patent-document ucid="{ucid}" country="{country}" doc-number="{number}" kind="{kind}" '
            f'lang="{patent.language}"{family} status="new" date-produced="20090516" date="{_date(version)}">',
            *_bibliography(version),
            *sections,
            "<drawings/>",
            "<copyright/>",
            "</patent-document>",
            "",
        ]
    )


def _description(version: Version) -> Iterator[str]:
    """Headings and paragraphs; a paragraph's number, unlike its position, does not begin at 1."""
    language = f' lang="{version.patent.language}"' if "paragraph_language" in version.patent.odd else ""
    number = itertools.count(version.patent.position % 2 * 10 + 1)
    for tag, text in version.description:
        if tag == "heading":
            yield f"<heading>{text}</heading>"
        else:
            yield f'<p num="{next(number):04d}"{language}>{text}</p>'


def _date(version: Version) -> str:
    """The day of publication; grants come later than applications."""
    position = version.patent.position
    year = 1998 + position % 5 if version.patent.number.startswith("WO") else 1996 + position % 4
    return f"{year + 3 * (version.kind == 'B1')}{1 + position % 12:02d}{1 + position % 28:02d}"


def _bibliography(version: Version) -> Iterator[str]:
    """The bibliographic data, line by line."""
    patent, ucid = version.patent, version.ucid
    titles = [code for code in LANGUAGES if ucid.startswith("EP") or code in ("EN", "FR", patent.language)]
    yield "<bibliographic-data>"
    yield f'<publication-reference ucid="{ucid}" status="new" fvid="{22846476 + patent.position}">'
    yield f"{_document_id(ucid, _date(version), patent.language)}</publication-reference>"
    application = f"{patent.number[:3]}{98000001 + patent.position}-A"
    yield f'<application-reference ucid="{application}" status="new" mxw-id="PAPP{18318424 + patent.position}" '
    yield f'load-source="docdb" is-representative="NO">{_document_id(application)}</application-reference>'
    priority = f"US-{9815763 + patent.position}-W"
    yield f'<priority-claims status="new"><priority-claim ucid="{priority}" mxw-id="PPC{patent.position}">'
    yield f"{_document_id(priority)}</priority-claim></priority-claims>"
    yield "<dates-of-public-availability/>"
    yield '<technical-data status="new">'
    yield from _classification(_codes(patent), patent.position % 4)
    for language in titles:
        title = version.content.title[language]
        yield f'<invention-title lang="{language}" load-source="docdb" status="new">{title}</invention-title>'
    if version.citations:
        yield "<citations><patent-citations>"
        for number, cited in enumerate(version.citations):
            yield f'<patcit ucid="{cited}" mxw-id="PCIT{number}" load-source="docdb">{_document_id(cited)}</patcit>'
        yield "</patent-citations><non-patent-citations>"
        yield '<nplcit load-source="docdb"><text>Handbook of Apparatus, 3rd edition, pages 12-17.</text></nplcit>'
        yield "</non-patent-citations></citations>"
    yield "</technical-data>"
    yield '<parties><applicants/><inventors><inventor format="epo"><addressbook><last-name>DOE JANE</last-name>'
    yield "</addressbook></inventor></inventors></parties>"
    yield "<international-convention-data/>"
    yield "</bibliographic-data>"


def _document_id(ucid: str, date: str = "19970801", language: str | None = None) -> str:
    country, number, kind = ucid.split("-")
    inside = f"<country>{country}</country><doc-number>{number}</doc-number><kind>{kind}</kind><date>{date}</date>"
    return f'<document-id format="epo">{inside}{f"<lang>{language}</lang>" if language else ""}</document-id>'


def _codes(patent: Patent) -> tuple[str, ...]:
    return THEMES[patent.theme][patent.language].codes[: 2 + patent.position % 3]


def _classification(codes: Sequence[str], form: int) -> Iterator[str]:
    """IPC codes in one of four forms: today's with a tail, the old one, today's without the first or any space."""
    columns = [f"{subclass}{main:>4}/{group}" for subclass, main, group in (re.split("[ /]", code) for code in codes)]
    if form == 1:
        yield '<classification-ipc status="new"><edition>7</edition>'
        yield f"<main-classification>{columns[0]}</main-classification>"
        yield from (f"<further-classification>{code}</further-classification>" for code in columns[1:])
        yield "</classification-ipc>"
    else:
        written = {
            0: [f"{code:<19}20060101A I20051008RMEP        " for code in columns],
            2: [f"{code.replace(' ', '')}        20060101A I20051008RMEP" for code in codes],
            3: [f"{code.replace(' ', '')}20060101AI20051008RMEP" for code in codes],
        }[form]
        yield '<classifications-ipcr status="new">'
        yield from (f'<classification-ipcr status="new">{code}</classification-ipcr>' for code in written)
        yield "</classifications-ipcr>"


def _write_topics(home: Path) -> dict[str, Topic]:
    """Writes the applications and their families; returns the topics, split by split."""
    topics: list[Topic] = []
    numbers = {split: itertools.count(1) for split in _TOPIC_PREFIX}
    first, second = SAME_APPLICATION
    for number, (split, language) in enumerate(TOPIC_LANGUAGES):
        core, theme = divmod(number, len(THEMES))
        application = first if number == second else number
        cores = (0, 1) if application == first else (core,)
        patent = Patent(f"EP-{1480263 + 1117 * application}", 1000 + 4 * application, language, theme, cores, ("A1",))
        version = make_version(patent, "A1", write_content(patent))
        document = _document(version, Path(f"{version.ucid}.xml"))
        for name in _splits(split):
            _write(home / SPLITS[name].topic_documents / document.path, _source(version))
        family: tuple[str, ...] = ()
        if split == "2013/test":
            abroad = make_version(replace(patent, number=f"WO-{2003065434 + 211 * application}"), "A1", version.content)
            family = (f"JP-{2003224099 + application}-A", abroad.ucid)
            _write(home / FAMILY_DOCUMENTS / f"{family[0]}.xml", _abroad(family[0], version))
            _write(home / FAMILY_DOCUMENTS / f"{family[1]}.xml", _source(abroad))
        passages = [passage for passage in document.passages if "/claims/" in passage[0]]
        claims = [
            passage for passage, claim in zip(passages, version.content.claims, strict=True) if claim.core == core
        ]
        xpaths, texts = zip(*claims, strict=True)
        tid = f"{_TOPIC_PREFIX[split]}{next(numbers[split])}"
        topics.append(Topic(tid, split, document, xpaths, " ".join(texts), family, (theme, core)))
    return {topic.tid: topic for split in SPLITS for topic in topics if topic.split == split}


def _abroad(ucid: str, version: Version) -> str:
    """A family member with nothing but a title."""
    country, number, kind = ucid.split("-")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<patent-document ucid="{ucid}" country="{country}" '
        f'doc-number="{number}" kind="{kind}" lang="JA" family-id="{version.family}">\n<bibliographic-data>'
        f'<technical-data><invention-title lang="EN">{version.content.title["EN"]}</invention-title></technical-data>'
        "</bibliographic-data>\n</patent-document>\n"
    )


def _topic_block(topic: Topic, split: Split) -> str:
    """A topic as its file has it; one of 2012 has the tags of the task's web page, one of 2013 goes over many lines."""
    separator = "\n" if topic.tid == "PSG5" else " "
    file, claims = f"{topic.document.ucid}.xml", separator.join(topic.claims)
    if split.startswith("2012") and topic.tid == "tPSG-2":
        return f"<tid>{topic.tid}</tid>\n<file>{file}</tfile>\n<claims>{claims}</tclaims>\n\n"
    family = f"<tfam-docs>{' '.join(f'{ucid}.xml' for ucid in topic.family)}</tfam-docs>\n"
    family *= split.startswith("2013")
    return f"<tid>{topic.tid}</tid>\n<tfile>{file}</tfile>\n{family}<tclaims>{claims}</tclaims>\n\n"
