"""Damaged and hostile artifacts: flipped bits, links, and graphs whose numbers cannot be."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyterrier as pt
import pytest
import tiny
from test_sharing import KINDS, base, base_encoder, document_graph, made, query_passage_graph
from trainings import forks

from pyterrier_graph import __main__, integrity
from pyterrier_graph.artifacts import CARD, complete, read_meta, writing
from pyterrier_graph.evaluation.model_card import write_card
from pyterrier_graph.graphs import DocumentGraph
from pyterrier_graph.graphs.query_passage_graph import QueryPassageGraph
from pyterrier_graph.integrity import DIGESTS, META, OWN_DIGEST, meta_text, open_meta, verify
from pyterrier_graph.retrieve.contextual_index import ContextualIndex

AT_ONCE = 50  # flips in a process


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An artifact of every kind."""
    places = {}
    for name in KINDS:
        artifact = made(name, tmp_path_factory.mktemp("kind"))
        places[name] = Path(str(artifact.path))
    return places


def use(name: str, path: Path) -> None:
    """Loads an artifact and does what it is for."""
    if name == "contextual index":
        index = ContextualIndex(path, base()["graph"], base_encoder())
        index(tiny.topics(2))
    else:
        KINDS[name].does(pt.Artifact.load(str(path), **KINDS[name].given()))


def flips(artifacts: dict[str, Path], count: int, seed: int) -> Iterator[tuple[str, str, int, int]]:
    """Kind, file, byte and bit: kinds in turn, any of their files, any of its bits."""
    random = np.random.default_rng(seed)
    names = [*artifacts]
    for number in range(count):
        name = names[number % len(names)]
        files = sorted(file for file in artifacts[name].rglob("*") if file.is_file() and file.stat().st_size)
        file = files[random.integers(len(files))]
        yield (
            name,
            file.relative_to(artifacts[name]).as_posix(),
            int(random.integers(file.stat().st_size)),
            int(random.integers(8)),
        )


def flip(file: Path, place: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def use_flipped(artifacts: dict[str, Path], part: list[tuple[str, str, int, int]], limit: int) -> None:
    """Uses artifacts with a flipped bit each; files up to a size are compared when they are opened.

    Those of graphs and of files that are compared are refused, or do no harm; others may raise any exception.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # however busy the machine is
    integrity.SMALL = limit
    for name, file, place, bit in part:
        path = artifacts[name] / file
        flip(path, place, bit)
        try:
            use(name, artifacts[name])
        except ValueError:
            pass
        except Exception as error:
            assert limit == 0 and "graph" not in name, (name, file, place, bit, error)  # noqa: PT017
        else:
            assert path.stat().st_size > limit, (name, file, place, bit)
        finally:
            flip(path, place, bit)


def check_flips(artifacts: dict[str, Path], count: int, seed: int) -> None:
    """verify() finds every flip, and no process that uses what is damaged crashes or hangs."""
    every = [*flips(artifacts, count, seed)]
    for name, file, place, bit in every:
        flip(artifacts[name] / file, place, bit)
        with pytest.raises(ValueError, match="damaged"):
            verify(artifacts[name], verbose=False)
        flip(artifacts[name] / file, place, bit)
    context = multiprocessing.get_context("fork")
    for start in range(0, count, AT_ONCE):
        limit = integrity.SMALL if start % (2 * AT_ONCE) else 0  # without, flips reach what reads the files
        process = context.Process(target=use_flipped, args=(artifacts, every[start : start + AT_ONCE], limit))
        process.start()
        process.join(600)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0, every[start : start + AT_ONCE]


@forks
def test_flipped_bits(artifacts: dict[str, Path]) -> None:
    for path in artifacts.values():
        verify(path, verbose=False)
    check_flips(artifacts, 40, 1)


@forks
@pytest.mark.slow
def test_500_flipped_bits(artifacts: dict[str, Path]) -> None:
    check_flips(artifacts, 500, 2)


# --- what is checked when an artifact is opened


KIND = {"type": "thing", "format": "files", "format_version": 1}


def thing(path: Path) -> Path:
    with writing(path, dict(KIND) | {"number": 1e-05}) as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "small").write_bytes(b"12345")
        (folder / "large").write_bytes(bytes(integrity.SMALL + 1))
    return path


def test_every_value_of_the_meta_counts(tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    meta = read_meta(path, KIND)
    text = (path / META).read_text()
    changes: list[dict[str, Any]] = [{"number": 1e-06}, {"more": 1}, {OWN_DIGEST: "0"}, {DIGESTS: {}}, {"files": {}}]
    for change in changes:
        (path / META).write_text(json.dumps(meta | change, indent=1))
        with pytest.raises(ValueError, match="damaged"):
            read_meta(path, KIND)
    for name in (OWN_DIGEST, DIGESTS):
        (path / META).write_text(json.dumps({key: meta[key] for key in meta if key != name}, indent=1))
        with pytest.raises(ValueError, match="damaged"):
            read_meta(path, KIND)
    (path / META).write_text(text.replace("1e-05", "1E-05"))  # one bit, the same value
    with pytest.raises(ValueError, match="damaged"):
        read_meta(path, KIND)
    (path / META).write_text("[" * 100_000)
    with pytest.raises(ValueError, match="damaged"):
        read_meta(path, KIND)


def test_small_files_are_compared_when_opened_and_large_ones_by_verify(tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    flip(path / "large", 77, 3)
    read_meta(path, KIND)
    with pytest.raises(ValueError, match="damaged: 'large' has another content than when it was written$"):
        verify(path, verbose=False)
    flip(path / "inside" / "small", 2, 3)
    with pytest.raises(ValueError, match="damaged: 'inside/small' has another content"):
        read_meta(path, KIND)
    with pytest.raises(ValueError, match="'inside/small' has .*; 'large' has"):
        verify(path, verbose=False)


def test_an_artifact_of_an_older_version_opens_and_verify_says_that_it_has_no_digests(tmp_path: Path) -> None:
    graph = document_graph(tmp_path / "graph")
    meta = graph.meta
    (graph.path / META).write_text(json.dumps({key: meta[key] for key in meta if key not in (DIGESTS, OWN_DIGEST)}))
    old = DocumentGraph(graph.path)
    assert len(old) == 2
    with pytest.warns(UserWarning, match="has no digests, since an older version"):
        old.verify(verbose=False)
    assert __main__.verify([str(graph.path), "--quiet"]) == 1
    write_card(old)
    assert len(DocumentGraph(graph.path)) == 2


@pytest.mark.skipif(os.name != "posix", reason="other systems ask for rights to make links")
@pytest.mark.parametrize("place", ["inside/small", "inside", "unlisted"])
def test_symbolic_links_are_refused(place: str, tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    if (path / place).exists():
        shutil.move(path / place, tmp_path / "elsewhere")
    (path / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"'{place}' is a symbolic link"):
        read_meta(path, KIND)
    (tmp_path / "door").symlink_to(thing(tmp_path / "other"))
    assert read_meta(tmp_path / "door", KIND)  # the user's own link to an artifact is followed


def test_names_of_files_that_lead_elsewhere(tmp_path: Path) -> None:
    path = thing(tmp_path / "thing")
    (tmp_path / "secret").write_text("12345")
    for name in ("../secret", str(tmp_path / "secret"), "inside/../../secret", "", "inside", "a\0b"):
        meta = read_meta(thing(tmp_path / f"new{len(name)}"), KIND)
        meta["files"] = {name: 5}
        meta[DIGESTS] = {name: integrity.file_sha256(tmp_path / "secret")}
        (path / META).write_text(meta_text(meta))
        with pytest.raises(ValueError, match="damaged|null"):
            read_meta(path, KIND)
    os.mkfifo(path / "pipe") if hasattr(os, "mkfifo") else None
    (path / META).write_text(meta_text(KIND | {"files": {"pipe": 0}, DIGESTS: {"pipe": ""}}))
    with pytest.raises(ValueError, match="'pipe' should have 0 bytes, has None"):
        read_meta(path, KIND)


def test_a_huge_meta_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = thing(tmp_path / "thing")
    monkeypatch.setattr(integrity, "MAX_META", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        read_meta(path, KIND)


def test_cards_and_edge_features_have_digests(tmp_path: Path) -> None:
    graph = query_passage_graph(tmp_path / "graph")
    texts = pt.apply.generic(lambda frame: frame.assign(text=frame["docno"]))
    graph.add_edge_features(lambda left, right: np.ones((len(left), 3)), texts, verbose=False)
    write_card(graph)
    again = QueryPassageGraph(graph.path).verify(verbose=False)
    assert {CARD, "retrieved.features.f2"} <= {*again.meta[DIGESTS]}
    flip(graph.path / "retrieved.features.f2", 3, 1)
    with pytest.raises(ValueError, match="retrieved.features.f2"):
        graph.verify(verbose=False)


@pytest.mark.parametrize("entry", ["options", "sha256", "random_start"])
def test_a_model_that_lacks_an_entry(entry: str, artifacts: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(artifacts["cross-encoder"], tmp_path / "model"))
    meta = open_meta(path)
    (path / META).write_text(meta_text({name: meta[name] for name in meta if name != entry}))
    with pytest.raises(ValueError, match=f"damaged: it lacks '{entry}'"):
        pt.Artifact.load(str(path))


# --- verify


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [thing(tmp_path / "all" / name) for name in ("one", "two")]
    assert __main__.verify([str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out == "".join(f"{str(path)!r} is as it was written\n" for path in paths)
    flip(paths[1] / "large", 0, 0)
    flip(paths[1] / "inside" / "small", 0, 0)
    assert __main__.verify([str(tmp_path / "all"), "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "one" not in out and "'large' has another content" in out and "'inside/small' has another content" in out
    (tmp_path / "empty").mkdir()
    assert __main__.verify([str(tmp_path / "empty")]) == 2 and "no artifact" in capsys.readouterr().err
    code = [sys.executable, "-m", "pyterrier_graph", "verify", str(paths[1])]
    assert subprocess.run(code, capture_output=True).returncode == 1


def test_a_model_that_was_not_saved_cannot_be_verified() -> None:
    with pytest.raises(ValueError, match="save it first"):
        base_encoder().verify()


def test_a_download_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "SMALL", 0)  # nothing is compared but by verify()
    count: list[Path] = []
    original = integrity.verify
    monkeypatch.setattr(integrity, "verify", lambda path, **given: count.append(path) or original(path, **given))
    graph = document_graph(tmp_path / "graph")
    assert len(DocumentGraph(graph.path)) == 2 and not count
    note = Path(f"{graph.path}.json")
    note.write_text('{"url": "https://example.org/artifact.tar.lz4"}')  # as PyTerrier's from_url, from_hf, from_zenodo
    for _ in range(2):
        assert len(DocumentGraph(graph.path)) == 2 and len(count) == 1
    assert json.loads(note.read_text()) == {
        "url": "https://example.org/artifact.tar.lz4",
        "verified": graph.meta[OWN_DIGEST],
    }
    flip(graph.path / "texts.lz4", 30, 2)
    note.write_text('{"url": "https://example.org/artifact.tar.lz4"}')
    with pytest.raises(ValueError, match=r"'texts.lz4' has another content.*Delete '.*' and '.*json' to download it"):
        len(DocumentGraph(graph.path))


# --- graphs whose numbers cannot be, with digests that are right


def edit(file: Path, dtype: str, place: int, value: float) -> None:
    values = np.fromfile(file, dtype)
    values[place] = value
    values.tofile(file)


def ids_edit(place: int, value: int) -> Callable[[Path], None]:
    """Sets eight bytes of a file of ids; the header of the first block of ids is after that of the file."""

    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        first = int.from_bytes(content[4:12], "little")
        content[first + place : first + place + 8] = value.to_bytes(8, "little", signed=True)
        file.write_bytes(content)

    return change


DOCUMENT_GRAPH: list[tuple[str, Callable[[Path], None], str]] = [
    ("node_type.u1", lambda file: edit(file, "u1", 3, 7), "entry 3 is 7, and must be 0 to 1"),
    ("parent.i8", lambda file: edit(file, "<i8", 2, 99), "entry 2 is 99, and must be -1 to 9"),
    ("parent.i8", lambda file: edit(file, "<i8", 2, 2), "above itself"),
    ("parent.i8", lambda file: edit(file, "<i8", 0, 4), "above itself"),
    ("document.i8", lambda file: edit(file, "<i8", 2, 1), "entry 3 is 0, after 1"),
    ("roots.i8", lambda file: edit(file, "<i8", 1, 0), "entry 1 is 0, after 0"),
    ("node_offsets.i8", lambda file: edit(file, "<i8", 1, 11), "entry 1 is 11, and must be 0 to 10"),
    ("node_offsets.i8", lambda file: edit(file, "<i8", 2, 9), "ends with 9, not with 10"),
    ("passage_offsets.i8", lambda file: edit(file, "<i8", 0, 1), "entry 0 is 1, and must be 0"),
    ("passage_nodes.i8", lambda file: edit(file, "<i8", 5, 1), "entry 5 is 1, after"),
    ("order.indptr.i8", lambda file: edit(file, "<i8", 3, 4), "entry 4 is"),
    ("order.indices.u4", lambda file: edit(file, "<u4", 1, 1 << 31), "entry 1 is 2147483648, and must be 0 to 9"),
    ("document_codes.indices.u4", lambda file: edit(file, "<u4", 0, 1), "must be 0 to 0"),
    ("external.indptr.i8", lambda file: file.write_bytes(file.read_bytes()[:-8]), "11 entries of 8 bytes are needed"),
    ("text_blocks.i8", lambda file: edit(file, "<i8", 1, 1 << 40), "must be 0 to"),
    ("texts.lz4", lambda file: edit(file, "u1", 3, 127), "block 0 cannot be unpacked"),
    ("texts.lz4", lambda file: edit(file, "u1", 6, 255), "cannot be unpacked|is no text"),
    ("codes.json", lambda file: file.write_text('["a", "b"]'), "should have 1 names"),
    ("docnos.npids", ids_edit(4, 0), "leads out of the file"),  # the next block is the first one, for ever
    ("docnos.npids", ids_edit(4, 1 << 40), "leads out of the file"),
    ("docnos.npids", ids_edit(12, 1 << 40), "leads out of the file"),
    ("docnos.npids", ids_edit(12, 3), "3 ids of"),
    ("docnos.npids", ids_edit(20, (1 << 32) - 1), "leads out of the file"),
    ("docnos.npids", lambda file: edit(file, "u1", -4, 9), "hash table"),
]
QUERY_GRAPH: list[tuple[str, Callable[[Path], None], str]] = [
    ("retrieved.indptr.i8", lambda file: edit(file, "<i8", 1, 1 << 40), "entry 1 is"),
    ("retrieved.indices.u4", lambda file: edit(file, "<u4", 0, 1 << 31), "entry 0 is 2147483648"),
    ("retrieved.scores.f4", lambda file: edit(file, "<f4", 2, np.nan), "entry 2 is nan, and must be finite"),
    ("relevant_i.edges.u4", lambda file: edit(file, "<u4", 0, 77), "must be 0 to 5"),
    ("relevant_i.indices.u4", lambda file: edit(file, "<u4", 0, 2), "must be 0 to 1"),
    ("qids.npids", ids_edit(4, 0), "leads out of the file"),
]


def use_graph(graph: Any) -> None:
    if isinstance(graph, DocumentGraph):
        nodes = np.arange(graph.num_nodes)
        assert graph.nodes_of(graph.ids_of(nodes)).tolist() == nodes.tolist()
        graph.titles(nodes), graph.summary(), graph.passages_of_documents(np.arange(2)), len(graph.code_names)
        graph.codes_of(np.arange(2)), graph.nodes_of_documents(np.arange(2)), graph.texts(nodes), graph.document[nodes]
    else:
        graph.query_of(graph.qids_of(np.arange(graph.num_queries)))
        for edge_type in graph.edge_types:
            graph.edges_of_queries(np.arange(graph.num_queries), edge_type)
            graph.edges_of_passages(np.arange(graph.num_passages), edge_type)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    return {DocumentGraph: document_graph(folder / "a").path, QueryPassageGraph: query_passage_graph(folder / "b").path}


@pytest.mark.parametrize(
    ("kind", "file", "change", "message"),
    [(DocumentGraph, *case) for case in DOCUMENT_GRAPH] + [(QueryPassageGraph, *case) for case in QUERY_GRAPH],
)
def test_a_graph_with_numbers_that_cannot_be(
    kind: type, file: str, change: Callable[[Path], None], message: str, graphs: dict[type, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(graphs[kind], tmp_path / "graph"))
    use_graph(kind(path))
    change(path / file)
    complete(path, open_meta(path))  # as a stranger would
    with pytest.raises(ValueError, match=f"{file}.*damaged.*({message})"):
        use_graph(kind(path))


@pytest.mark.parametrize("change", [{"nodes": 11}, {"nodes": -1}, {"documents": "2"}, {"passages": 5}])
def test_lengths_that_disagree_with_the_meta(change: dict[str, Any], graphs: dict[type, Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(graphs[DocumentGraph], tmp_path / "graph"))
    (path / META).write_text(meta_text(open_meta(path) | change))
    with pytest.raises(ValueError, match="damaged"):
        use_graph(DocumentGraph(path))


def test_arrays_are_checked_across_the_parts_in_which_they_are_read(
    graphs: dict[type, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyterrier_graph.graphs import consistency

    monkeypatch.setattr(consistency, "CHUNK", 2)
    use_graph(DocumentGraph(graphs[DocumentGraph]))
    for place in (1, 2, 9):
        path = Path(shutil.copytree(graphs[DocumentGraph], tmp_path / str(place)))
        edit(path / "order.indptr.i8", "<i8", place, -1)
        complete(path, open_meta(path))
        with pytest.raises(ValueError, match=f"entry {place} is -1"):
            use_graph(DocumentGraph(path))
