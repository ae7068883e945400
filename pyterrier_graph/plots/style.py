"""The look of all pictures and HTML: colors, sizes, texts that are cut, the style sheets of objects and of a page."""

from __future__ import annotations

from collections.abc import Iterable

# Readable on white and on black, and distinct for color-blind readers (after Okabe and Ito).
COLORS = ("#1F83C8", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999933", "#AA4499")
NEUTRAL = "#808080"
PLUS, MINUS = COLORS[0], COLORS[4]  # what adds to a score, and what takes from it
TEXT = 9  # points, of the smallest text
WIDEST = 9.0  # inches, of a picture: what a notebook shows in a window of 1100 pixels
NAME_WIDTH = 48
HEIGHT, GAP, LINES = 116, 8, 48  # pixels of a result, below it, and between two columns of results
LIGHTEST, DARKEST = 0.08, 0.42  # opacity of the color behind a word: of the weakest and of the strongest one

# Texts have the color of the page around them, so that a page may be light or dark; only marks and areas have colors.
CSS = f"""
.ptg {{ font-size: 14px; line-height: 1.5; max-width: 100%; overflow-wrap: anywhere; }}
.ptg * {{ box-sizing: border-box; }}
.ptg table {{ margin: 4px 0; width: auto; color: inherit; border-collapse: collapse; }}
.ptg th, .ptg td {{ padding: 1px 10px 1px 0; text-align: left; vertical-align: top; }}
.ptg th {{ font-weight: normal; }}
.ptg code {{ display: block; background: none; color: inherit; white-space: pre-wrap; }}
.ptg .title {{ font-weight: bold; }}
.ptg .quiet {{ opacity: 0.85; font-size: 12px; }}
.ptg .one-line {{ white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }}
.ptg .row {{ display: flex; flex-wrap: wrap; gap: 8px 24px; align-items: flex-start; }}
.ptg .wide {{ max-width: 100%; overflow-x: auto; }}
.ptg .swatch {{ display: inline-block; width: 12px; height: 12px; margin-right: 4px; border-radius: 2px; }}
.ptg .legend > span {{ margin-right: 14px; white-space: nowrap; }}
.ptg .block {{ border-left: 4px solid {NEUTRAL}; padding: 2px 0 2px 10px; margin: 8px 0; }}
.ptg .bar {{ display: inline-block; height: 10px; border-radius: 2px; vertical-align: middle; }}
.ptg .number {{ font-variant-numeric: tabular-nums; }}
.ptg mark {{ color: inherit; border-radius: 3px; padding: 0 1px; }}
.ptg mark.minus {{ text-decoration: underline dotted; }}
.ptg .result {{ height: {HEIGHT}px; overflow: hidden; padding: 4px 8px; border: 1px solid #8888; border-radius: 6px; }}
.ptg .result.judged {{ border-left-width: 5px; }}
.ptg .text {{ display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }}
.ptg .compared {{ display: flex; min-width: min-content; }}
.ptg .column {{ flex: 1 1 240px; min-width: 220px; display: flex; flex-direction: column; gap: {GAP}px; }}
.ptg .lines {{ flex: 0 0 {LINES}px; }}
""".strip()

PAGE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: 0.2em 1.2em 0.2em 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: 0.8em; border: 1px solid #8884; border-radius: 6px; }
figure { margin: 1.5em 0; }
.ptg { margin: 1.5em 0; }
"""


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """A color for each distinct name, in order of appearance; colors repeat if there are more names than colors."""
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(dict.fromkeys(names))}


def shortened(text: str, width: int = NAME_WIDTH) -> str:
    """A text without its middle, since ids differ at their ends."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: (width - 1) * 2 // 3]}…{text[-((width - 1) // 3) :]}"


def marked_color(share: float) -> str:
    """The color behind a word that adds this share, from -1 to 1, of what the strongest word adds."""
    red, green, blue = (int((PLUS if share >= 0 else MINUS)[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {LIGHTEST + (DARKEST - LIGHTEST) * abs(share):.2f})"
