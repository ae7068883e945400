"""All pictures and cards in a real browser: light and dark, in narrow and wide windows. Skips without Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from html import unescape
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyterrier as pt
import pytest
import tiny
from pictures import AFTER, BEFORE, LOG, PICTURES

import pyterrier_graph as ptg
from pyterrier_graph import plots

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIGHT, DARK = 1, 0  # Chromium's numbers of color schemes
MEASURE = """<script>
const texts = [...document.querySelectorAll(".ptg *")].filter(e => e.childNodes.length
  && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && !["STYLE", "SCRIPT"].includes(e.tagName));
document.body.dataset.measured = JSON.stringify({
  page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  cards: [...document.querySelectorAll(".ptg")].map(e => e.scrollWidth - e.clientWidth),
  text: Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize))),
  images: [...document.images].map(e => ({shown: e.clientWidth, own: e.naturalWidth, alt: e.alt.length})),
  lines: [...document.querySelectorAll(".lines line")].length,
  color: getComputedStyle(document.querySelector(".ptg .title")).color,
});
</script>"""
STYLE = ":root { color-scheme: light dark } body { font-family: sans-serif; margin: 8px }"


@cache
def page(style: str) -> str:
    """A page with all pictures, in the colors of a style, and with what notebooks show of objects."""
    with plt.style.context(style):
        axes = [draw() for draw in PICTURES.values()]
        axes += [plots.training_curves(LOG)[0], plots.similarity_shift(BEFORE, AFTER)[0]]
        parts = [ax.figure._repr_html_() for ax in axes]
        plt.close("all")
    graph, quiet = tiny.graph(), {"device": "cpu", "verbose": False}
    maxsim = ptg.GraphMaxSim(graph, tiny.encoder(), **quiet)
    mean = ptg.GraphMean(graph, ptg.DualEncoder(tiny.checkpoint(), max_passage_tokens=24, **quiet), **quiet)
    hgat = ptg.HGATReranker(graph, tiny.encoder(), config=ptg.HGATConfig(heads=2), **quiet)
    first = pt.Transformer.from_df(tiny.run().assign(text="alpha beta " * 30, score=1.0))
    names = ["first", "maxsim", "hgat", "again", "and again"]
    rankings = [first, first >> maxsim, first >> hgat, first >> maxsim, first]
    qrels = pd.DataFrame({"docno": ["d0%p0"], "label": [1]})
    parts += [plots.compare(tiny.topics().iloc[0], rankings, names=names, qrels=qrels)._repr_html_()]
    parts += [ptg.explain(model, "alpha kappa", "d0%p1").html for model in (maxsim, hgat, mean)]
    long = first
    for _ in range(12):
        long = long >> maxsim
    parts += [model._repr_html_() for model in (graph, maxsim, mean, hgat)] + [plots.pipeline(long)._repr_html_()]
    body = "".join(f"<div>{part}</div>" for part in parts)
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><body>{body}{MEASURE}</body>"


def browser(path: Path, width: int, scheme: int, *options: str) -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={path.parent / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"]
    command += [f"--window-size={width},900", *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 1500])
def test_pictures_in_a_browser(tmp_path: Path, width: int, scheme: int) -> None:
    path, shot = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(page("default" if scheme == LIGHT else "dark_background"), "utf-8")
    found = re.search(r'data-measured="([^"]*)"', browser(path, width, scheme, "--dump-dom"))
    assert found
    measured = json.loads(unescape(found[1]))
    assert measured["page"] <= 0 and max(measured["cards"]) <= 0  # nothing is wider than the window
    assert measured["text"] >= 12  # pixels, which are 9 points
    assert len(measured["images"]) == len(PICTURES) + 2
    for image in measured["images"]:
        assert image["alt"] > 30 and image["own"] > 100
        assert image["shown"] >= 0.9 * image["own"]  # texts of 9 points stay larger than 8
    assert measured["lines"] > 4
    assert measured["color"] == ("rgb(0, 0, 0)" if scheme == LIGHT else "rgb(255, 255, 255)")
    browser(path, width, scheme, f"--screenshot={shot}")
    pixels = plt.imread(shot)[..., :3]
    assert pixels.shape[1] == width and pixels.std() > 0.05
    corner = pixels[-4:, -4:].mean()  # right of the first pictures, where there is only the page
    assert corner > 0.95 if scheme == LIGHT else corner < 0.2
