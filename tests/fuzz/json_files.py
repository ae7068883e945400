"""Targets that open artifacts: their JSON, their other files, and what lies in their folders, is changed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tiny

import pyterrier_graph as ptg
from pyterrier_graph.patents import DocumentFrequencies

from . import world
from .running import target
from .values import changed_bytes, changed_json

META = "pt_meta.json"
OUTSIDE = ["../x", "/etc/hostname", "a/../../x", "..", ".", "", "\0", "a" * 300, "pt_meta.json/x"]
ODD = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"NaN",
    b'{"a": 1, "a": 2}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"type": 1e999}',
    b"1" * 5000,
]


def use_graph(folder: Path) -> None:
    """Opens a document graph and reads everything."""
    graph = ptg.DocumentGraph(folder)
    nodes = graph.nodes_of(graph.ids_of(graph.passage_nodes))
    graph.texts(nodes, titles=True)
    for relation in graph.relations:
        graph.neighbors(nodes, relation)
    graph.passages().transform(tiny.run(2).assign(docno="d0"))
    _ = repr(graph), graph.fingerprint(), graph.codes_of(np.arange(len(graph))), graph._repr_html_()


def use_query_graph(folder: Path) -> None:
    """Opens a graph of queries and passages and reads everything."""
    graph = ptg.QueryPassageGraph(folder)
    queries = graph.query_of(graph.qids_of(np.arange(min(graph.num_queries, 100))))
    graph.texts(queries)
    for edge_type in graph.edge_types:
        graph.edges_of_queries(queries, edge_type)
        graph.edges_of_passages(np.arange(min(graph.num_passages, 100)), edge_type)
    if "retrieved" in graph.meta.get("features", {}):
        _ = graph.edge_features()[:5]
    _ = repr(graph), graph.fingerprint(), graph._repr_html_()


def use_tokens(folder: Path) -> None:
    """Opens stored token vectors and ranks by them."""
    store = ptg.TokenStore(folder)
    reranker = ptg.GraphMaxSim(world.graph(), tiny.encoder(), {"title": 1.0}, tokens=store, verbose=False)
    reranker.transform(tiny.run(1))


def use_frequencies(folder: Path) -> None:
    """Opens document frequencies."""
    counts = DocumentFrequencies(folder)
    for language in [*counts.documents][:3]:
        counts.idf(["laser"], language)


def use_index(folder: Path) -> None:
    """Opens a contextual index and searches."""
    ptg.ContextualIndex(folder, world.graph(), world.encoder()).retriever(3).transform(tiny.topics(1))


def use_reranker(name: str) -> Callable[[Path], None]:
    """Loads a model and ranks."""

    def use(folder: Path) -> None:
        kind = type(world.reranker(name))
        given: dict[str, Any] = {"graph": world.graph()} if "graph" in kind.GIVEN else {}
        model = kind.load(folder, device="cpu", **given)
        model.transform(tiny.run(1).assign(text="alpha"))
        _ = repr(model), model._repr_html_()

    return use


@cache
def stored(name: str) -> Path:
    """The folder of a sound artifact."""
    made: dict[str, Callable[[], Any]] = {
        "graph": lambda: world.graph().path,
        "query-graph": lambda: world.query_graph().path,
        "tokens": lambda: world.tokens().path,
        "frequencies": lambda: world.frequencies().path,
        "index": lambda: world.contextual().path,
    }
    if name in made:
        return Path(made[name]())
    return Path(world.reranker(name).save(world.folder() / f"saved-{name}").path)


USES = {
    "graph": use_graph,
    "query-graph": use_query_graph,
    "tokens": use_tokens,
    "frequencies": use_frequencies,
    "index": use_index,
    **{name: use_reranker(name) for name in ("maxsim", "hgat", "lgre", "cross-encoder", "dual")},
}


def open_changed(name: str, random: Random) -> None:
    """Opens an artifact of which something was changed."""
    source = stored(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "artifact")
        shutil.copytree(source, folder, copy_function=linked)
        links = change(folder, random)
        USES[name](folder)
        assert not links, "a symbolic link was followed out of the artifact"


def linked(source: str, target: str) -> None:
    """A copy of a small file; a large one is shared, and is not changed."""
    (shutil.copy if os.path.getsize(source) < 1 << 20 else os.link)(source, target)


def change(folder: Path, random: Random) -> bool:
    """Changes something, and says whether a file became a link that leads out of the folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size < 1 << 20)
    texts = [file for file in files if file.suffix == ".json"]
    kind = random.random()
    file = folder / META if random.random() < 0.6 or not texts else random.choice(texts)
    if kind < 0.6:
        content = changed_json(random, json.loads(file.read_text("utf-8")))
        file.write_text(json.dumps(content), "utf-8", errors="surrogatepass")
    elif kind < 0.68:
        file.write_bytes(random.choice(ODD) if random.random() < 0.5 else changed_bytes(random, file.read_bytes()))
    elif kind < 0.76:
        about = json.loads((folder / META).read_text("utf-8"))
        names = about.get("files")
        if isinstance(names, dict) and names:
            odd = random.choice(OUTSIDE)
            names[odd] = (
                names.pop(random.choice([*names])) if random.random() < 0.5 else random.choice([0, 1, -1, 2**70])
            )
        (folder / META).write_text(json.dumps(about), "utf-8")
    elif kind < 0.92:
        change_bytes(folder, random.choice(files), random)
    else:
        file = random.choice(files)
        data = file.read_bytes()
        file.unlink()
        if random.random() < 0.5:
            outside = folder.parent / "outside"
            outside.write_bytes(data)
            file.symlink_to(outside)
            return True
        if random.random() < 0.3:
            file.mkdir()
    return False


def change_bytes(folder: Path, file: Path, random: Random) -> None:
    """Changes a file so that its size, and often its digest, are those that are stated."""
    data = bytearray(file.read_bytes())
    for _ in range(random.choice([1, 1, 5])):
        if data:
            start = random.randrange(min(len(data), random.choice([64, len(data)])))
            new = random.choice([b"\xff" * 8, b"\0" * 8, random.randbytes(1), random.randbytes(8)])[: len(data) - start]
            data[start : start + len(new)] = new
    file.write_bytes(data)
    if file == folder / META:
        return
    about = json.loads((folder / META).read_text("utf-8")) if random.random() < 0.5 else {}
    if isinstance(about.get("file_sha256"), dict):  # as somebody would who wants it to be read
        import hashlib

        about["file_sha256"][file.relative_to(folder).as_posix()] = hashlib.sha256(data).hexdigest()
        (folder / META).write_text(json.dumps(about), "utf-8")


def add(name: str) -> None:
    """Adds the target of an artifact."""
    target(f"artifact/{name}")(lambda random: open_changed(name, random))


for _name in USES:
    add(_name)
