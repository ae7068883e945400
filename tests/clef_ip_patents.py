"""What the patents of the miniature CLEF-IP collection say, and in which odd ways."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, NamedTuple, TypeVar
from xml.sax.saxutils import escape

from clef_ip_vocabulary import (
    ABSTRACT,
    BACKGROUND,
    DEPENDENT_CLAIM,
    DETAIL,
    HEADINGS,
    INDEPENDENT_CLAIM,
    LANGUAGES,
    REFERENCES,
    SOLUTION,
    THEMES,
    TITLE,
)

T = TypeVar("T")
Split = Literal["2012/train", "2012/test", "2013/train", "2013/test"]

# The splits and languages of the topics.
TOPIC_LANGUAGES: tuple[tuple[Split, str], ...] = (
    ("2013/test", "EN"),
    ("2013/test", "DE"),
    ("2013/test", "FR"),
    ("2013/test", "EN"),
    ("2012/test", "EN"),
    ("2012/train", "EN"),
    ("2012/train", "DE"),
    ("2012/train", "FR"),
    ("2013/test", "EN"),
    ("2013/test", "DE"),
    ("2013/test", "FR"),
    ("2013/test", "EN"),
    ("2012/train", "EN"),
    ("2012/test", "DE"),
    ("2012/test", "FR"),
    ("2012/test", "EN"),
    ("2012/train", "EN"),
    ("2012/train", "DE"),
    ("2012/train", "FR"),
    ("2012/train", "EN"),
)
SAME_APPLICATION = (0, 8)  # these two topics
_EP_KINDS: tuple[tuple[str, ...], ...] = (("A1",), ("A1", "B1"), ("A2", "A3"), ("A1",), ("A2", "A3", "B1"))
_WO_KINDS: tuple[tuple[str, ...], ...] = (("A1",), ("A1",), ("A2",))


@dataclass(frozen=True)
class Patent:
    """A patent before it is written: ``cores`` are its inventions, 0 to 2 within its field."""

    number: str
    position: int
    language: str
    theme: int
    cores: tuple[int, ...]
    kinds: tuple[str, ...]
    citations: tuple[str, ...] = ()
    odd: frozenset[str] = frozenset()


class Claim(NamedTuple):
    """A claim in all languages, the claims that it refers to, and which of its patent's inventions it is about."""

    texts: dict[str, str]
    targets: tuple[int, ...]
    core: int


@dataclass
class Content:
    """What a patent says, as XML fragments.

    ``core`` are the positions, from 1, of the description's paragraphs about the invention, and
    ``references`` its references to claims, by the same positions; ``citations`` are those in its text.
    """

    title: dict[str, str]
    abstract: dict[str, list[str]]
    description: list[tuple[str, str]] = field(default_factory=list)
    core: set[int] = field(default_factory=set)
    references: list[tuple[int, int]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    citations: tuple[str, ...] = ()

    def add(self, fragment: str, *, core: bool = False, claim: int | None = None) -> None:
        """Adds a paragraph to the description."""
        self.description.append(("p", fragment))
        position = sum(tag == "p" for tag, _ in self.description)
        if core:
            self.core.add(position)
        if claim:
            self.references.append((position, claim))


@dataclass(frozen=True)
class Version:
    """One of a patent's documents. ``claims`` and ``abstracts`` are fragments by language, in the order of the file."""

    patent: Patent
    content: Content
    kind: str
    abstracts: dict[str, list[str]]
    description: list[tuple[str, str]]
    claims: dict[str, list[str]]
    citations: tuple[str, ...]

    @property
    def ucid(self) -> str:
        return f"{self.patent.number}-{self.kind}"

    @property
    def family(self) -> str | None:
        return None if "no_family" in self.patent.odd else str(19768124 + self.patent.position)

    @property
    def legacy(self) -> bool:
        """Whether all claims are in one element."""
        return "legacy_claims" in self.patent.odd


def make_version(patent: Patent, kind: str, content: Content) -> Version:
    """A2 leaves the citations to A3, which has nothing else; B1 has claims in all languages and no abstract."""
    abstract_languages = {patent.language}
    if patent.number.startswith("WO"):
        abstract_languages |= {"EN", "FR"}
    if "abstract_in_other_languages" in patent.odd:
        abstract_languages.remove(patent.language)
    claims = content.claims[:-1] if kind == "B1" and len(content.claims) > 3 else content.claims
    empty = kind == "A3"
    return Version(
        patent,
        content,
        kind,
        {
            code: content.abstract[code]
            for code in LANGUAGES
            if code in abstract_languages and content.abstract and kind in ("A1", "A2")
        },
        [] if empty else content.description,
        {
            code: [claim.texts[code] for claim in claims]
            for code in (("DE", "EN", "FR") if kind == "B1" else (patent.language,))
            if not empty
        },
        () if kind == "A2" and "A3" in patent.kinds else patent.citations,
    )


def make_patents() -> list[Patent]:
    """Two or three patents in a topic's language, now and then one in another, and some that no topic is about."""
    plans: list[tuple[str, int, int]] = []
    for number in range(3 * len(THEMES)):
        core, theme = divmod(number, len(THEMES))
        language = TOPIC_LANGUAGES[number][1] if number < len(TOPIC_LANGUAGES) else LANGUAGES[number % 3]
        others = [LANGUAGES[(LANGUAGES.index(language) + 1 + number % 2) % 3]] * (number % 4 == 0)
        same = 1 if number >= len(TOPIC_LANGUAGES) else 2
        plans += [(chosen, theme, core) for chosen in [language] * same + others]
    patents = []
    for position, (language, theme, core) in enumerate(plans):
        if position % 3 == 2:
            name = f"WO-{1998 + position % 5}{731 + 1009 * position:06d}"
            kinds = _WO_KINDS[position // 3 % len(_WO_KINDS)]
        else:
            name = f"EP-{968118 + 2039 * position:07d}"
            kinds = _EP_KINDS[position % len(_EP_KINDS)]
        patents.append(Patent(name, position, language, theme, (core,), kinds))
    return _with_odd_cases([_with_citations(patent, patents) for patent in patents])


def _with_citations(patent: Patent, patents: Sequence[Patent]) -> Patent:
    """Cites patents of the same field, one of another, and some that are not in the collection."""
    random = Random(f"citations of {patent.number}")
    near = [other for other in patents if other.theme == patent.theme and other is not patent]
    far = [other for other in patents if other.theme != patent.theme]
    cited = random.sample(near, 2) + random.sample(far, 1)
    ucids = [f"{other.number}-{other.kinds[0]}" for other in cited]
    ucids.insert(1, f"JP-{5708229 + patent.position}-B2")
    if patent.position % 2:
        ucids.append(f"US-{4815763 + patent.position}-A")
    return replace(patent, citations=tuple(ucids))


# Odd cases that a patent is chosen for, each another one: the country, language and kind that it must have.
_CHOSEN_FOR = {
    "legacy_claims": ("EP", "EN", "A1"),
    "no_abstract": ("EP", "EN", "A1"),
    "no_family": ("EP", "FR", "A1"),
    "empty_paragraph": ("EP", "EN", "A1"),
    "nested_markup": ("EP", "EN", "A2"),
    "entities": ("WO", "EN", "A1"),
    "no_section_language": ("EP", "DE", "A2"),
    "paragraph_language": ("EP", "FR", "A1"),
    "long_claim": ("WO", "EN", "A2"),
    "abstract_in_other_languages": ("WO", "DE", "A1"),
    "unknown_claim": ("EP", "EN", "A2"),
    "two_paragraphs_in_abstract": ("WO", "EN", "A2"),
}


def _with_odd_cases(patents: list[Patent]) -> list[Patent]:
    for case, (country, language, kind) in _CHOSEN_FOR.items():
        chosen = next(
            place
            for place, patent in enumerate(patents)
            if (patent.number[:2], patent.language, patent.kinds[0]) == (country, language, kind) and not patent.odd
        )
        patents[chosen] = replace(patents[chosen], odd=frozenset({case}))
    return patents


def odd_cases(patent: Patent, kind: str) -> Iterator[str]:
    """Odd cases of one of a patent's documents."""
    if kind != "A3":
        yield from patent.odd if kind == patent.kinds[0] else ()
        yield "heading_between_paragraphs"
    else:
        yield "no_description"
    if kind == "B1":
        yield "claims_in_three_languages"
    if patent.number.startswith("WO"):
        yield "abstracts_in_several_languages"
        if patent.language == "FR":
            yield "own_abstract_is_second"
    if has_doctype(patent):
        yield "doctype"
    yield ("codes_with_tail", "old_codes", "codes_without_space", "codes_without_any_space")[patent.position % 4]


def has_doctype(patent: Patent) -> bool:
    """Whether its files refer to a DTD."""
    return patent.position % 3 == 0


def write_content(patent: Patent) -> Content:
    """Writes title, abstract, description and claims."""
    return _Writer(patent).content


class _Writer:
    """Writes what a patent says. What it says about its (first) invention it says of three parts in any order."""

    def __init__(self, patent: Patent) -> None:
        self.patent = patent
        self.random = Random(f"content of {patent.number}")
        core = patent.cores[0]
        order = self._shuffled(_core(core))
        self.content = Content(
            {language: self._sentence(TITLE[language], language, order, core) for language in LANGUAGES},
            {language: [self._sentence(ABSTRACT[language], language, order, core)] for language in LANGUAGES},
        )
        self._add_description(core)
        for core in patent.cores:
            self._add_claims(core)
        self._add_odd_cases()

    def _add_description(self, core: int) -> None:
        content, language = self.content, self.patent.language
        complaints, objective = BACKGROUND[language][:-1], BACKGROUND[language][-1]
        background = itertools.cycle(self._shuffled(complaints))
        headings = [("heading", escape(heading)) for heading in HEADINGS[language]]
        if self.patent.position % 2:  # a paragraph before the first heading
            content.add(self._about_others([next(background)]))
        content.description.append(headings[0])
        content.add(self._about_others([next(background), next(background)]))
        if self.patent.position % 3:
            content.add(self._about_others([next(background)]))
        content.description.append(headings[1])
        content.add(f"{self._about_others([objective])} {SOLUTION[language].format(claim=1)}", claim=1)
        content.add(self._about_invention(core), core=True)
        content.description.append(headings[2])
        for number in range(self.random.randint(2, 5)):
            if number in (1, 3, 4):
                content.add(self._about_invention(core), core=True)
            else:
                content.add(self._about_others(self.random.sample(DETAIL[language], 2)))

    def _add_claims(self, core: int) -> None:
        """An independent claim, and some that refer to those before them in every way that there is."""
        claims, random = self.content.claims, self.random
        start = len(claims) + 1
        order = self._shuffled(_core(core))
        texts = {code: self._sentence(INDEPENDENT_CLAIM[code], code, order, core) for code in LANGUAGES}
        claims.append(Claim(texts, (), core))
        for number in range(start + 1, start + random.randint(3, 8)):
            last = number - 1
            kinds = ["one"]
            if start == 1:
                kinds.append("preceding")
            if last > start:
                kinds += ["range", "either", "any"]
            kind = kinds[(self.patent.position + number) % len(kinds)]
            first = random.randint(start, last) if kind == "one" else start
            targets = {"one": (first,), "either": (first, last)}.get(kind, tuple(range(first, last + 1)))
            part = random.choice(_core(core))
            parts = self._shuffled([part, random.choice([other for other in range(10) if other != part])])
            template, phrase, n = (
                random.randrange(len(DEPENDENT_CLAIM["EN"])),
                random.randrange(2),
                random.randint(2, 60),
            )
            texts = {}
            for code in LANGUAGES:
                phrases = REFERENCES[code][kind]
                reference = phrases[phrase % len(phrases)].format(first=first, last=last)
                texts[code] = self._sentence(DEPENDENT_CLAIM[code][template], code, parts, core, n, reference)
            claims.append(Claim(texts, targets, core))

    def _add_odd_cases(self) -> None:
        content, odd = self.content, self.patent.odd
        if "no_abstract" in odd:
            content.abstract = {}
        if "two_paragraphs_in_abstract" in odd:
            for language, paragraphs in content.abstract.items():
                paragraphs.append(self._sentence(DETAIL[language][0], language, _core(self.patent.cores[0]), 0))
        if "empty_paragraph" in odd:
            content.description.insert(2, ("p", ""))
            content.core = {position + 1 for position in content.core}
            content.references = [(position + 1, claim) for position, claim in content.references]
        if "nested_markup" in odd:
            content.add(
                'As <figref idref="f0001">Fig. 1</figref> shows, the gas is CO<sub>2</sub> at 10<sup>5</sup> Pa in the '
                '<b>first <i>circuit</i></b> (<patcit ucid="US-4815762-A">US 4 815 762</patcit>): '
                "<ul>\n<li>filled at 20 degrees,</li>\n<li>drained once a year.</li>\n</ul>"
            )
            content.add(
                "<table>\n<tgroup>\n<row><entry>part</entry> <entry>price</entry></row>\n"
                "<row><entry>large</entry> <entry>12</entry></row>\n</tgroup>\n</table>"
            )
            content.citations = ("US-4815762-A",)
        if "entities" in odd:
            content.add("Heating &amp; cooling at &#x3B1; &lt; 45&#176; &#8211; for &quot;A&quot; &gt; 3 &#956;m.")
        if "unknown_claim" in odd:
            content.add("Further advantages follow from claim 27.")
        if "long_claim" in odd:
            first, *others = content.claims
            texts = {code: f"{text[:-1]}, where:{self._steps(code)}" for code, text in first.texts.items()}
            content.claims = [first._replace(texts=texts), *others]

    def _steps(self, language: str) -> str:
        """Many parts of a claim, each in an element of its own."""
        details = itertools.cycle(DETAIL[language])
        steps = (
            self._sentence(next(details), language, parts, sum(parts) % 3, number).rstrip(".")
            for number, parts in enumerate(itertools.combinations(range(10), 3), 3)
        )
        return "".join(f"\n<claim-text>{step[0].lower()}{step[1:]};</claim-text>" for step in steps) + "\n"

    def _about_invention(self, core: int) -> str:
        """A paragraph that a topic's claims are about."""
        templates = self.random.sample(DETAIL[self.patent.language], 2)
        return self._paragraph([(template, self._shuffled(_core(core)), core) for template in templates])

    def _about_others(self, templates: Iterable[str]) -> str:
        """A paragraph about other parts of the field, one at most of those of the invention."""
        sentences = []
        for template in templates:
            core = _core(self.patent.cores[0])
            one, two, three = self.random.sample([part for part in range(10) if part not in core], 3)
            parts = [one, two, self.random.choice([three, *core])]
            sentences.append((template, self._shuffled(parts), self.random.randrange(3)))
        return self._paragraph(sentences)

    def _paragraph(self, sentences: Iterable[tuple[str, list[int], int]]) -> str:
        return " ".join(
            self._sentence(template, self.patent.language, parts, effect, self.random.randint(3, 90))
            for template, parts, effect in sentences
        )

    def _sentence(
        self, template: str, language: str, parts: Sequence[int], effect: int, n: int = 0, reference: str = ""
    ) -> str:
        """Fills a template and begins its sentences with capitals."""
        theme = THEMES[self.patent.theme][language]
        slots = dict(zip("pqr", (theme.parts[part] for part in parts), strict=False))
        effect_clause = theme.effects[effect]
        filled = template.format(
            d=theme.device, purpose=theme.purpose, effect=effect_clause, n=n, reference=reference, **slots
        )
        return escape(re.sub(r"(?:^|(?<=\. ))\w", lambda first: first[0].upper(), filled))

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return self.random.sample(items, len(items))


def _core(core: int) -> list[int]:
    """The parts of an invention."""
    return [3 * core, 3 * core + 1, 3 * core + 2]
