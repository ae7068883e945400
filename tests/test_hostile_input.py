"""Input from strangers: no code, no network, no surprise; what fuzzing found."""

from __future__ import annotations

import ast
import errno
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_dual_encoder import checkpoint as bi_encoder
from test_fuzz import is_allowed
from test_lgre_reranker import cross_encoder

import pyterrier_graph as ptg
from pyterrier_graph.checks import DataWarning, check_frame, query_texts
from pyterrier_graph.clef_ip import DocumentFrequencies, NotOwnFamily, SharedCodes
from pyterrier_graph.documents.document import Link, Node, StructuredDocument, split_passage_id
from pyterrier_graph.documents.readers.html import parse_xml
from pyterrier_graph.documents.readers.page import ReaderError
from pyterrier_graph.encoders.checkpoints import device_of, loading
from pyterrier_graph.graphs.passages import Fold, Passages
from pyterrier_graph.pair.dual_encoder import DualEncoder

PACKAGE = Path(ptg.__file__).parent
RUN = tiny.run(2).assign(score=1.0, text="alpha")


# --- what the package never does


def test_no_code_is_read() -> None:
    """No module imports a library that runs what it reads, except the writer's copy of its parent's data."""
    unsafe = {"pickle", "shelve", "marshal", "dill", "yaml", "xmlrpc"}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [
                alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)
            ]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert unsafe.isdisjoint(name.partition(".")[0] for name in names), file
            if isinstance(node, ast.Call):
                function = ast.unparse(node.func)
                assert function not in ("eval", "exec", "torch.load", "joblib.load"), file
                assert "allow_pickle" not in {option.arg for option in node.keywords}, file


def test_entities_stay_as_they_are(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET", "utf-8")
    text = f'<!DOCTYPE a [<!ENTITY b SYSTEM "{secret.as_uri()}"><!ENTITY c "{"d" * 10}">]><a>&b;&c;</a>'
    root = parse_xml(text.encode())
    assert "SECRET" not in "".join(root.itertext())
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE a [<!ENTITY l0 "x">{levels}]><a>&l11;</a>'
    try:
        assert len("".join(parse_xml(bomb.encode()).itertext())) < 1000
    except ReaderError as error:
        assert str(error)


# --- checkpoints


def test_a_checkpoint_cannot_name_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a checkpoint was run')", "utf-8")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    for content in (json.dumps(modules), "[" * 100_000, "[1]", "\0", json.dumps([{"type": None}])):
        (tmp_path / "modules.json").write_text(content, "utf-8")
        with pytest.raises(ValueError, match="evil.Evil|is damaged"):
            ptg.TokenEncoder(str(tmp_path), device="cpu")


def pickled(checkpoint: str, folder: Path, part: str = "") -> str:
    """A copy of a checkpoint whose weights are pickled."""
    shutil.copytree(checkpoint, folder)
    weights = folder / part / "model.safetensors"
    (folder / part).mkdir(exist_ok=True)
    torch.save(load_file(folder / "model.safetensors"), weights.with_name("pytorch_model.bin"))
    weights.unlink(missing_ok=True)
    return str(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    message = "pytorch_model.bin' holds pickled weights, which are not read; if you trust them, convert them: "
    texts, pairs = (
        pickled(bi_encoder(), tmp_path / "texts"),
        pickled(cross_encoder(), tmp_path / "pairs"),
    )
    for load in (ptg.TokenEncoder, DualEncoder):
        with pytest.raises(ValueError, match=message):
            load(texts, device="cpu")
    for load in (ptg.CrossEncoderReranker, ptg.LGReReranker):
        with pytest.raises(ValueError, match=message):
            load(pairs, device="cpu", max_tokens=8)
    projected = pickled(bi_encoder(), tmp_path / "projected", "2_Dense")
    listed = json.loads((tmp_path / "projected" / "modules.json").read_text("utf-8"))
    listed.append(listed[-1] | {"idx": 2, "name": "2", "path": "2_Dense"})
    (tmp_path / "projected" / "modules.json").write_text(json.dumps(listed), "utf-8")
    with pytest.raises(ValueError, match=f"2_Dense.{message}"):
        DualEncoder(projected, device="cpu")
    hub = OSError(
        "x does not appear to have a file named y. Please do not set `use_safetensors=True`."
    )
    with (
        pytest.raises(ValueError, match="'x' has no model.*safetensors, and pickled weights"),
        loading("x"),
    ):
        raise hub


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    for error in (
        KeyError("x"),
        json.JSONDecodeError("x", "", 0),
        TypeError("x"),
        RuntimeError("x"),
    ):
        with (
            pytest.raises(ValueError, match="cannot be loaded, its files are damaged"),
            loading(str(tmp_path)),
        ):
            raise error


# --- records


@pytest.mark.parametrize(
    "record, message",
    [
        ({"docno": "d", "text": "a", "codes": 5}, "'codes' must be a list of strings, got 5"),
        ({"docno": "d", "text": "a", "codes": [[1]]}, r"a code must be a string, got \[1\]"),
        (
            {"docno": "d", "text": "a", "title": np.zeros(3)},
            "node 0 is .*expected Node.kind, text, parent.",
        ),
        (
            {"docno": "d", "nodes": [["section", "a", "x"]]},
            "node 0 is .*expected Node.kind, text, parent.: a string",
        ),
        ({"docno": "d", "nodes": [["section", "a", -1]], "links": [["x", "0", 0]]}, "link 0 is"),
        (
            {"docno": "d", "nodes": [["section", "a", -1]], "references": [["x", 0, 7]]},
            "reference 0 is",
        ),
    ],
)
def test_records_with_other_types(record: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        StructuredDocument.from_record(record)


def test_other_records() -> None:
    document = StructuredDocument(
        "d", (Node("section", "a", np.int64(-1)),), (Link("x", np.int64(0), 0),)
    )
    assert document.root == 0  # numbers of numpy are whole numbers, too
    with pytest.raises(TypeError, match="a record must be a dictionary"):
        ptg.read_record([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-empty string as 'docno'"):
        ptg.read_record({"docno": 5, "text": "a"})
    news = ptg.read_record(
        {"docno": "d", "marked_up_doc": "<text><p>a\x0bb\ud800</p>&#11; c</text>"}
    )
    assert " ".join(news.passages()).split()[:2] == ["a", "b"]


def test_numbers_of_passages_that_no_graph_has() -> None:
    huge = f"d0%p{'9' * 5000}"  # Python refuses to make a number of more than 4300 digits
    assert split_passage_id(huge) == (huge, None) and split_passage_id("d%p0007") == ("d", 7)
    assert (
        tiny.graph().find([huge, f"d0%s{'9' * 30}", "d0%p٣", None, 5, "d0%p0"]).tolist()[:5]
        == [-1] * 5
    )
    with pytest.raises(KeyError, match="not in the graph"):
        tiny.graph().nodes_of([huge])


# --- frames


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda run: run.to_dict("records"), TypeError, "a DataFrame is needed, got"),
        (
            lambda run: run.assign(docno=[None, *run["docno"][1:]]),
            ValueError,
            "a docno must be a text, got",
        ),
        (
            lambda run: run.assign(qid=pd.Series(["\ud800"] * 12, dtype=object)),
            ValueError,
            "ud800' is not valid",
        ),
        (lambda run: run.assign(qid=1.5), ValueError, "a qid must be a text, got 1.5"),
        (
            lambda run: pd.concat([run, run[["qid"]]], axis=1),
            ValueError,
            "must be different texts, got 'qid'",
        ),
        (lambda run: run.rename(columns={"rank": 0}), ValueError, "must be different texts, got 0"),
        (
            lambda run: run.assign(score=["x", *run["score"][1:]]),
            ValueError,
            "score must be numbers",
        ),
        (
            lambda run: run.assign(score=pd.Series([True] * len(run), dtype=object)),
            ValueError,
            "score must be numbers",
        ),
        (lambda run: run.assign(score=1j), ValueError, "score must be numbers"),
        (lambda run: run.assign(score=np.nan), ValueError, "query 't0', 'd0%p0' has no score"),
    ],
)
def test_frames_that_cannot_be_computed_with(
    change: Any, error: type[Exception], message: str
) -> None:
    for transformer in (
        ptg.DocumentEvidence(),
        Passages(tiny.graph()),
        Fold(tiny.graph(), "document"),
    ):
        with pytest.raises(error, match=message) as raised:
            transformer.transform(change(RUN))
        assert is_allowed(raised.value) and type(transformer).__name__ in str(raised.value)


def test_frames_that_are_unusual_and_right() -> None:
    plain = ptg.DocumentEvidence()(RUN)
    changes = [
        RUN.set_axis([0] * len(RUN)),
        RUN.rename_axis("qid"),
        RUN.astype({"score": object}),
        RUN.astype(
            {"score": "Float64", "docno": "category", "qid": "category", "query": "category"}
        ),
        RUN.astype(
            dict.fromkeys(
                ("docno", "qid", "query"), pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))
            )
        ),
    ]
    for frame in changes:
        found = ptg.DocumentEvidence()(frame)
        assert query_texts(check_frame(frame, "x")).to_dict() == {"t0": "alpha", "t1": "beta"}
        assert (
            found["score"].tolist() == plain["score"].tolist()
            and found["docno"].tolist() == plain["docno"].tolist()
        )
    numbered = check_frame(RUN.assign(docno=range(len(RUN)), qid=1, query="alpha"), "x")
    assert numbered["docno"][3] == "3" and numbered["qid"][3] == 1
    assert check_frame(RUN, "x", numbers=("score",), texts=("query",)).equals(RUN)


def test_values_that_only_some_transformers_read() -> None:
    documents = RUN.assign(codes=[5] * len(RUN), document="EP-1-A1", family=[["x"]] * len(RUN))
    with pytest.raises(ValueError, match="codes must be a list of texts, got 5"):
        SharedCodes(tiny.graph()).transform(documents)
    with pytest.raises(ValueError, match="family must be a list of texts"):
        NotOwnFamily().transform(documents.assign(family=[[1]] * len(RUN)))
    with pytest.raises(ValueError, match="a label must be an integer, got 0.5"):
        ptg.DocumentEvidence().fit(RUN, tiny.qrels(2).assign(label=0.5))
    halves = RUN.assign(query=pd.Series(["\ud800"] * len(RUN), dtype=object))
    with pytest.raises(ValueError, match="query .t0. has no text"):
        ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {}).transform(halves)


def test_judgments_that_no_measure_can_be_computed_of() -> None:
    qrels = pd.DataFrame({"query_id": ["1"], "doc_id": ["d0%p0"], "relevance": [1]})
    for changed, message in (
        (qrels.assign(relevance=0.5), "the judgments: relevance must be integers, got .*0.5"),
        (
            qrels.assign(relevance=np.inf),
            "the judgments: relevance must be integers, got .*inf",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ptg.measures.on_documents(ir_measures.nDCG @ 3).calc_aggregate(
                changed, qrels.assign(score=1.0)
            )


def test_records_that_no_artifact_can_hold(tmp_path: Path) -> None:
    root, passage = ["section", "", -1], ["passage", "alpha", 0]
    for fields in (
        {"docno": "\ud800"},
        {"nodes": [root, ["passage", "a\udcff", 0]]},
        {"codes": ["\ud800"]},
        {"passage_ids": ["\ud800"]},
        {"references": [["external", 0, "\ud800"]]},
        {"links": [["\ud800", 0, 1]]},
    ):
        with pytest.raises(ValueError, match="'.{0,6}ud[8c].*' is not valid Unicode"):
            StructuredDocument.from_record({"docno": "d0", "nodes": [root, passage]} | fields)
    with pytest.raises(ValueError, match="document None needs a 'language'"):
        DocumentFrequencies(tmp_path / "counts", verbose=False).index(
            [{"text": "a", "language": "x" * 5000}]
        )


def mean(folder: Path, docno: str = "a", text: str = "alpha") -> ptg.GraphMean:
    graph = ptg.DocumentGraph(folder / "graph").index([{"docno": docno, "text": text}])
    return ptg.GraphMean(graph, bi_encoder(), device="cpu", verbose=False)


def whole(folder: Path) -> ptg.GraphIndex:
    return ptg.GraphIndex(folder / "i", encoder=bi_encoder(), verbose=False).index(
        tiny.documents(2)
    )


def removed(folder: Path, pipeline: Any) -> None:
    shutil.rmtree(folder / "i")
    pipeline.search("alpha")


@pytest.mark.filterwarnings("error::pyterrier_graph.checks.DataWarning")
@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda at: mean(at, text="").index(at / "i"),
            ValueError,
            "has no passages: none of its documents",
        ),
        (
            lambda at: mean(at, "a%s1"),
            ValueError,
            "must not look like the id of a passage or section",
        ),
        (
            lambda at: mean(at, "5%pt"),
            DataWarning,
            r"cannot read '5%pt%p0': use graph.fold\('document'\)",
        ),
        (
            lambda at: device_of("cuda:99"),
            ValueError,
            "'cuda:99' cannot be used here, device='cpu' can",
        ),
        (
            lambda at: ptg.GraphMean(tiny.graph(), DualEncoder),
            TypeError,
            "the class DualEncoder: call it",
        ),
        (
            lambda at: mean(PACKAGE / "checks.py"),
            OSError,
            "checks.py' is a file: choose another path",
        ),
        (lambda at: mean(at / ("x" * 300)), OSError, "choose another path"),
        (lambda at: ptg.TokenEncoder("x" * 300), OSError, "encoder must be a Hugging Face id"),
        (
            lambda at: removed(at, mean(at).index(at / "i").retriever()),
            FileNotFoundError,
            "was removed after it had been",
        ),
        (
            lambda at: removed(at, whole(at)),
            FileNotFoundError,
            "no artifact at",
        ),
        (
            lambda at: removed(at, whole(at).bm25()),
            FileNotFoundError,
            "was removed after it had been opened",
        ),
        (
            lambda at: ptg.DocumentEvidence().transform("a"),
            TypeError,
            "pipeline.search reads a text",
        ),  # type: ignore
        (lambda at: ptg.DocumentEvidence()("a"), ValueError, "got 0; a pipeline reads a DataFrame"),
    ],
)
def test_misuse_has_a_cause_and_a_remedy(
    call: Any, error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path)


def test_paths_after_chdir_and_on_read_only_media(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, graph = mean(Path()), ptg.DocumentGraph("graph")
    monkeypatch.chdir(Path(tmp_path.anchor))
    assert graph.texts(graph.passage_nodes[:1]) == ["alpha"]
    monkeypatch.setattr(
        Path, "mkdir", mock.Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    )
    with pytest.raises(OSError, match="Read-only file system: choose another path"):
        model.index(tmp_path / "index")
