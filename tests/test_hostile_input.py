"""Input from strangers: no code, no network, no surprise; what fuzzing found, and a little fuzzing."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
import tiny
import torch
from fuzz.running import is_allowed, run, targets
from safetensors.torch import load_file
from test_dual_encoder import checkpoint as bi_encoder
from test_dual_encoder import dual, examples
from test_lgre_reranker import cross_encoder

import pyterrier_graph as ptg
from pyterrier_graph import plots
from pyterrier_graph.checks import check_frame
from pyterrier_graph.documents import Link, Node, StructuredDocument, split_passage_id
from pyterrier_graph.encoders.checkpoints import SAFE_WEIGHTS, loading
from pyterrier_graph.evaluation.folds import by_query_length
from pyterrier_graph.graphs.fold import Fold
from pyterrier_graph.graphs.passages import Passages
from pyterrier_graph.patents import DocumentFrequencies, NotOwnFamily, SharedCodes
from pyterrier_graph.readers.encodings import decode
from pyterrier_graph.readers.errors import ReaderError
from pyterrier_graph.readers.front_matter import read_fields
from pyterrier_graph.readers.outline import Outline
from pyterrier_graph.readers.xml import parse_xml
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.query_weights import QueryWeights

PACKAGE = Path(ptg.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
CALLS = [
    (file, node, ast.unparse(node.func))
    for file in FILES
    for node in ast.walk(ast.parse(file.read_text("utf-8")))
    if isinstance(node, ast.Call)
]
RUN = tiny.run(2).assign(score=1.0, text="alpha")


def called(*names: str) -> list[tuple[str, ast.Call]]:
    """Calls of functions whose dotted name ends so."""
    found = []
    for file, node, name in CALLS:
        if any(name == wanted or name.endswith(f".{wanted}") for wanted in names):
            found.append((f"{file.relative_to(PACKAGE)}:{node.lineno}", node))
    return found


# --- what the package never does


def test_no_code_is_read() -> None:
    for name in ("pickle", "shelve", "dill", "joblib.load", "marshal", "cloudpickle"):
        places = [
            place for place, call in called(f"{name}.load", f"{name}.loads", name) if "copyreg" not in ast.unparse(call)
        ]
        assert not places, name  # copyreg.pickle says how an object is opened again
    assert not called("torch.load", "read_pickle", "eval_model", "compile_command", "os.system", "yaml.unsafe_load")
    builtin = [place for place, node in called("eval", "exec") if isinstance(node.func, ast.Name)]
    assert not builtin
    for place, node in called("np.load", "numpy.load"):
        assert not any(option.arg == "allow_pickle" for option in node.keywords), place
    imported = {
        alias.name.partition(".")[0]
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in ([ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names)
    }
    assert imported.isdisjoint(("pickle", "shelve", "marshal", "dill", "xmlrpc", "telnetlib"))


def test_yaml_is_read_by_a_safe_loader() -> None:
    (place, node), *others = called("yaml.load", "load_all", "full_load")
    assert not others and place.startswith("readers/front_matter.py") and ast.unparse(node.args[1]) == "_Loader"
    outline = Outline("a")
    for text in ("a: &x [1]\nb: *x", "title: !!python/object/apply:os.system [true]", "a: " + "[" * 500):
        read_fields(text, outline)
    assert outline.counts["front matter that is not readable"] == 3 and not outline.title


def test_remote_code_is_never_trusted() -> None:
    assert not [file for file in FILES if "trust_remote_code" in file.read_text("utf-8")]


def test_parsers_of_xml_have_neither_entities_nor_network() -> None:
    parsers = called("XMLParser")
    assert len(parsers) == 2
    for place, node in parsers:
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        wanted = {"resolve_entities": "False", "no_network": "True", "load_dtd": "False", "huge_tree": "False"}
        assert options.items() >= wanted.items(), place
    for place, node in called("HTMLParser"):
        assert "no_network=True" in ast.unparse(node), place
    assert not called("etree.parse", "lxml.html.parse", "minidom.parse", "ElementTree.parse", "sax.parse", "XSLT")
    given = [node for _, node in called("etree.fromstring", "etree.XML", "etree.HTML")]
    assert all(len(node.args) == 2 for node in given), "a parser is always given"


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
    texts, pairs = pickled(bi_encoder(), tmp_path / "texts"), pickled(cross_encoder(), tmp_path / "pairs")
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
    hub = OSError("x does not appear to have a file named y. Please do not set `use_safetensors=True`.")
    with pytest.raises(ValueError, match="'x' has no model.*safetensors, and pickled weights"), loading("x"):
        raise hub


def test_all_weights_are_loaded_as_safetensors() -> None:
    files = ("AutoTokenizer", "AutoConfig")  # which have no weights
    calls = [(place, ast.unparse(call)) for place, call in called("from_pretrained")]
    calls = [(place, text) for place, text in calls if not text.startswith(files)]
    calls += [(place, text) for place, call in called("kind") if "model_kwargs" in (text := ast.unparse(call))]
    calls += [
        (place, text)
        for place, call in called("SentenceTransformer", "CrossEncoder", "MultiVectorEncoder")
        if "modules=" not in (text := ast.unparse(call))
    ]
    assert len(calls) == 4
    assert [place for place, text in calls if "SAFE_WEIGHTS" not in text] == []
    assert SAFE_WEIGHTS["use_safetensors"] is True


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    for error in (KeyError("x"), json.JSONDecodeError("x", "", 0), TypeError("x"), RuntimeError("x")):
        with pytest.raises(ValueError, match="cannot be loaded, its files are damaged"), loading(str(tmp_path)):
            raise error


# --- records


@pytest.mark.parametrize(
    "record, message",
    [
        ("text", "a record must be a dictionary"),
        ({"docno": "d", "text": "a", "codes": 5}, "'codes' must be a list of texts, got 5"),
        ({"docno": "d", "text": "a", "codes": "ab"}, "'codes' must be a list of texts"),
        ({"docno": "d", "text": "a", "codes": [[1]]}, r"a code must be a text, got \[1\]"),
        ({"docno": "d", "text": "a", "title": np.zeros(3)}, "'title' must be text"),
        ({"docno": "d", "nodes": [["section", "a", "x"]]}, "node 0 is .*expected .kind, text, parent.: a text, a text"),
        ({"docno": "d", "nodes": [["section", "a", np.zeros(2)]]}, "node 0 is"),
        ({"docno": "d", "nodes": [["section", "a", -1]], "links": [["x", "0", 0]]}, "link 0 is"),
        ({"docno": "d", "nodes": [["section", "a", -1]], "references": [["x", 0, 7]]}, "reference 0 is"),
    ],
)
def test_records_with_other_types(record: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        StructuredDocument.from_record(record)


def test_other_records() -> None:
    document = StructuredDocument("d", (Node("section", "a", np.int64(-1)),), (Link("x", np.int64(0), 0),))
    assert document.root == 0  # numbers of numpy are whole numbers, too
    with pytest.raises(TypeError, match="a record must be a dictionary"):
        ptg.read_record([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-empty text as 'docno'"):
        ptg.read_record({"docno": 5, "text": "a"})
    page = ptg.read_record({"docno": "d", "body": "<p>a\ud800b", "body_content_type": "text/html"})
    assert page.passages() == ["a?b"]
    news = ptg.read_record({"docno": "d", "marked_up_doc": "<text><p>a\x0bb\ud800</p>&#11; c</text>"})
    assert " ".join(news.passages()).split()[:2] == ["a", "b"]
    with pytest.raises(ValueError, match="'http_headers' must have text"):
        ptg.read_record({"docno": "d", "body": "a", "body_content_type": "", "http_headers": np.zeros(2)})


def test_numbers_of_passages_that_no_graph_has() -> None:
    huge = f"d0%p{'9' * 5000}"  # Python refuses to make a number of more than 4300 digits
    assert split_passage_id(huge) == (huge, None) and split_passage_id("d%p0007") == ("d", 7)
    assert tiny.graph().find([huge, f"d0%s{'9' * 30}", "d0%p٣", None, 5, "d0%p0"]).tolist()[:5] == [-1] * 5
    with pytest.raises(KeyError, match="not in the graph"):
        tiny.graph().nodes_of([huge])


def test_names_of_files_that_are_not_unicode() -> None:
    from pyterrier_graph.readers.options import ReaderOptions
    from pyterrier_graph.readers.plain_text import parse
    from pyterrier_graph.readers.reading import read_draft

    for name in ("a\udcff.txt", "a\ud800.txt"):
        with pytest.raises(ReaderError, match="its name is not valid UTF-8"):
            read_draft(parse, b"text", name, ReaderOptions(1, 5, (), None, 100, 1))


def test_encodings_that_are_none() -> None:
    for name in ("rot13", "base64", "idna", "undefined", "\0", "no such"):
        assert decode(b"caf\xc3\xa9", name)[0] == "café"


# --- frames


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda run: run.to_dict("records"), TypeError, "a DataFrame is needed, got"),
        (lambda run: run.assign(docno=[None, *run["docno"][1:]]), ValueError, "a docno must be a text, got"),
        (
            lambda run: run.assign(docno=[["d0"], *run["docno"][1:]]),
            ValueError,
            r"a docno must be a text, got \['d0'\]",
        ),
        (lambda run: run.assign(qid=1.5), ValueError, "a qid must be a text, got 1.5"),
        (lambda run: pd.concat([run, run[["qid"]]], axis=1), ValueError, "must be different texts, got 'qid'"),
        (lambda run: run.rename(columns={"rank": 0}), ValueError, "must be different texts, got 0"),
        (lambda run: run.assign(score=["x", *run["score"][1:]]), ValueError, "score must be numbers"),
        (lambda run: run.assign(score=pd.Series([True] * len(run), dtype=object)), ValueError, "score must be numbers"),
        (lambda run: run.assign(score=1j), ValueError, "score must be numbers"),
        (lambda run: run.assign(score=np.nan), ValueError, "query 't0', 'd0%p0' has no score"),
        (lambda run: run.assign(docno=pd.Series(["\ud800"] * len(run), dtype=object)), ValueError, "not valid Unicode"),
    ],
)
def test_frames_that_cannot_be_computed_with(change: Any, error: type[Exception], message: str) -> None:
    for transformer in (ptg.DocumentEvidence(), Passages(tiny.graph()), Fold(tiny.graph(), "document")):
        with pytest.raises(error, match=message) as raised:
            transformer.transform(change(RUN))
        assert is_allowed(raised.value) and type(transformer).__name__ in str(raised.value)


def test_frames_that_are_unusual_and_right() -> None:
    plain = ptg.DocumentEvidence()(RUN)
    changes = [
        RUN.set_axis([0] * len(RUN)),
        RUN.rename_axis("qid"),
        RUN.astype({"score": object}),
        RUN.astype({"score": "Float64", "docno": "category", "qid": "category"}),
        RUN.astype({"docno": object}).set_axis(pd.Index([[n] for n in range(len(RUN))], dtype=object)),
    ]
    for frame in changes:
        found = ptg.DocumentEvidence()(frame)
        assert found["score"].tolist() == plain["score"].tolist() and found["docno"].tolist() == plain["docno"].tolist()
    numbered = check_frame(RUN.assign(docno=range(len(RUN)), qid=1), "x")
    assert numbered["docno"][3] == "3" and numbered["qid"][3] == 1
    assert check_frame(RUN, "x", numbers=("score",), texts=("query",)) is RUN


def test_values_that_only_some_transformers_read() -> None:
    topics = tiny.topics(2).assign(query=["a", 5])
    with pytest.raises(ValueError, match="by_query_length: a query must be a text, got 5"):
        by_query_length(topics)
    documents = RUN.assign(codes=[5] * len(RUN), document="EP-1-A1", family=[["x"]] * len(RUN))
    with pytest.raises(ValueError, match="codes must be a list of texts, got 5"):
        SharedCodes(tiny.graph()).transform(documents)
    with pytest.raises(ValueError, match="family must be a list of texts"):
        NotOwnFamily().transform(documents.assign(family=[[1]] * len(RUN)))
    weights = QueryWeights({name: np.eye(4, dtype=np.float16) for name in ("passages", "title")}, {"title": 1.0})
    for vector in (np.ones(3), np.full(4, np.nan), [1, 2, 3, 4], None, np.ones((4, 1))):
        with pytest.raises(ValueError, match="a query_vec must be an array of 4 finite numbers"):
            weights.transform(pd.DataFrame({"query_vec": pd.Series([vector], dtype=object)}))
    with pytest.raises(ValueError, match="a label must be a whole number, got 0.5"):
        ptg.DocumentEvidence().fit(RUN, tiny.qrels(2).assign(label=0.5))
    halves = RUN.assign(query=pd.Series(["\ud800"] * len(RUN), dtype=object))
    with pytest.raises(ValueError, match="query .t0. has no text"):
        ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {}).transform(halves)


def test_a_run_of_one_passage_is_written(home: Path, tmp_path: Path) -> None:
    from pyterrier_graph.datasets.clef_ip import Archive
    from pyterrier_graph.patents import write_official_run

    patents = Archive(home / "documents")
    docno = next(patents.patents()).docno
    run = pt.model.add_ranks(pd.DataFrame({"qid": ["1"], "docno": [f"{docno}%p0"], "score": [1.0]}))
    write_official_run(run, tmp_path / "run.txt", patents, verbose=False)
    assert docno in (tmp_path / "run.txt").read_text("utf-8")


@pytest.mark.parametrize("dtype", ["int64", "float64", "datetime64[ns]", "category"])
def test_ids_of_no_results(dtype: str) -> None:
    nothing = tiny.run()[:0].assign(docno=pd.Series([], dtype=dtype))
    assert not len(ptg.DocumentEvidence()(nothing))


def test_validation_queries_that_are_no_frame() -> None:
    with pytest.raises(TypeError, match="a DataFrame is needed, got 'qid'"):
        dual().fit_examples(examples(), "qid")  # type: ignore[arg-type]


def test_cross_validation_of_queries_that_are_not_unicode(tmp_path: Path) -> None:
    run = tiny.run()
    run["query"] = pd.Series("half a surrogate \ud800", run.index, dtype=object)
    found = ptg.cross_validate(
        lambda _: ptg.DocumentEvidence(), run, tiny.qrels(), 3, output_dir=tmp_path, verbose=False
    )
    assert set(found["qid"]) == set(run["qid"])


def test_tables_that_cannot_be_compared_or_drawn(tmp_path: Path) -> None:
    rows = [(name, f"t{n}", measure, n / 7) for name in "ab" for n in range(3) for measure in ("AP", "RR")]
    table = pd.DataFrame(rows, columns=["name", "qid", "measure", "value"])
    with pytest.raises(ValueError, match="the baseline 'a' has no value of RR, which others have"):
        ptg.summarize(table[(table["name"] != "a") | (table["measure"] != "RR")], "a")
    matches = pd.DataFrame({"token": ["a", "b"], "relation": "SELF", "node": "d0%p0", "match": "x", "score": 0.5})
    for score, message in ((np.nan, "token 'b' has no score"), (np.inf, "has the score inf"), (1e308, "1e.308")):
        with pytest.raises(ValueError, match=f"GraphMaxSim.explain.* {message}"):
            plots.token_matches(matches.assign(score=[0.5, score]))
    with pytest.raises(ValueError, match="node 'a.udcff' is not valid Unicode"):
        plots.token_matches(matches.assign(node=pd.Series(["x", "a\udcff"], dtype=object)))
    plots.token_matches(matches.assign(relation=pd.Series(["title", np.zeros(2)])))  # what is no relation has no color
    curve = pd.DataFrame({"system": "a", "measure": [0.5, "AP"], "value": 0.5, "seed": 0, "k": ["x", 1]})
    with pytest.raises(ValueError, match="no values of RR: the frame has 0.5, AP"):
        plots.measure_curve(curve, "RR", x="k")
    with pytest.raises(ValueError, match="a row per system.*: k must be numbers, got 'x'"):
        plots.measure_curve(curve.assign(measure="AP"), "AP", x="k")
    with pytest.raises(TypeError, match="a DataFrame is needed, got None"):
        plots.effectiveness_latency(None, "AP")  # type: ignore[arg-type]
    for value in (None, "x", [], 10**400):
        with pytest.raises(ValueError, match="loss in a training log must be a number, got "):
            plots.training_curves([{"step": 1, "loss": 0.5}, {"step": 2, "loss": value}])
    with pytest.raises(ValueError, match="must be a finite number, got 10000.*[.]{3}$"):
        ptg.GraphMaxSim(tiny.graph(), tiny.encoder(), {"title": 10**400})


def test_judgments_that_no_measure_can_be_computed_of() -> None:
    qrels = pd.DataFrame({"query_id": ["1"], "doc_id": ["d0%p0"], "relevance": [1]})
    for changed, message in (
        (qrels.assign(relevance=0.5), "the judgments: relevance must be whole numbers, got .*0.5"),
        (qrels.assign(relevance=np.inf), "the judgments: relevance must be whole numbers, got .*inf"),
        (qrels.assign(doc_id=pd.Series(["\ud800"], dtype=object)), "the judgments: docno .* is not valid Unicode"),
        (qrels.assign(query_id=0.5), "the judgments: a qid must be a text, got 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            ir_measures.evaluator([ptg.measures.on_documents(ir_measures.nDCG @ 3)], changed)


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
    for record, message in (
        (b"", "a record must be a dictionary with docno, text and language, got b''"),
        ({"text": "a", "language": "x" * 5000}, "document None needs 'text' and 'language'"),
        ({"docno": "d", "text": "\ud800", "language": "EN"}, "document 'd': its text is not valid Unicode"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            DocumentFrequencies(tmp_path / "counts").index([record], verbose=False)


# --- the fuzzing itself


def test_errors_from_inside_of_libraries_are_findings() -> None:
    for function in (lambda: {}["x"], lambda: pd.DataFrame().x, lambda: np.zeros(2) @ np.zeros(3), lambda: [][1]):
        with pytest.raises(Exception) as raised:  # noqa: B017, PT011
            function()
        assert not is_allowed(raised.value)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        check_frame(RUN.assign(qid=1.5), "x")
    assert is_allowed(raised.value)


CHEAP = [name for name in targets() if name.split("/")[0] in ("reader", "record", "clef-ip", "frame", "build")]


@pytest.mark.parametrize("name", CHEAP)
def test_a_few_inputs(name: str) -> None:
    assert [finding for seed in range(6) if (finding := run(name, seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*targets()])
def test_more_inputs(name: str) -> None:
    count = 20 if name.startswith(("fit", "artifact")) else 100
    assert [finding for seed in range(1000, 1000 + count) if (finding := run(name, seed))] == []
