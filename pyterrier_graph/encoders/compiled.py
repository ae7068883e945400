"""Encoders that OpenVINO runs: sentence encoders, without torch, and queries of token encoders; needs ``[openvino]``.

A checkpoint is converted once, and kept in PyTerrier's home by the identity of its vectors. Queries are encoded in
float32, passages in bfloat16 where the CPU computes it natively. A converted encoder is used only if it agrees with the
original: vectors of queries to 1e-3, and those of passages with a cosine of 0.9999.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, check_texts, warn_of_rewritten
from pyterrier_graph.encoders.names import NAMES, checkpoint_state
from pyterrier_graph.storage.artifact import atomic_folder, locked

logger = logging.getLogger(__name__)

FILES = ABOUT, NETWORK, WEIGHTS, TOKENIZER = (
    "about.json",
    "network.xml",
    "network.bin",
    "tokenizer.json",
)
KIND = {"type": "openvino_encoder", "format": "openvino"}
BATCH = 16
EXAMPLES = [
    "Who?",
    "How are TIES broken, and where?",
    "A longer text: " + "it is read in full, or cut. " * 30,
]


class CompiledEncoder(WithSignature, pt.Transformer):
    """The bi-encoder in a folder that :func:`compiled` has written. As a transformer, it encodes queries."""

    schematic = {
        "label": "SentenceEncoder",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }
    verbose = False

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.folder, self._programs = folder, cache(partial(_program, folder))
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        self.model_name, self._dimension, self._query, self._passage = (
            about  # prompts and limits of the latter two
        )
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._lock = Lock()  # of the tokenizer and the programs, which threads must not share

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.model_name.rpartition('@')[0]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (
            self.model_name,
            {name: (self.folder / name).read_bytes() for name in FILES},
        )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds ``query_vec`` to ``qid, query``."""
        pt.validate.query_frame(
            inp := check_frame(inp, self, texts=("query",)), extra_columns=["query"], context=self
        )
        return inp.assign(query_vec=[*self.encode_queries(inp["query"].tolist())])

    def query_encoder(self) -> pt.Transformer:
        """This transformer."""
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimensions)."""
        warn_of_rewritten(texts := check_texts(texts))
        return self._encode(texts, *self._query, precision="f32")

    def encode_docs(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimensions)."""
        half = "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return self._encode(check_texts(texts), *self._passage, precision="bf16" if half else "f32")

    def windows(self, texts: Sequence[str]) -> list[list[str]]:
        """The texts of the windows in which passages can be read in full: see ``SentenceEncoder.windows``."""
        prompt, limit = self._passage
        with self._lock:
            self._tokenizer.no_truncation()
            first, *tokens = self._tokenizer.encode_batch(
                [prompt, *texts], add_special_tokens=False
            )
        return windows_of(
            texts, tokens, limit - self._tokenizer.num_special_tokens_to_add(False) - len(first)
        )

    def _encode(self, texts: list[str], prompt: str, limit: int, *, precision: str) -> np.ndarray:
        vectors = np.empty((len(texts), self._dimension), np.float32)
        with self._lock:
            self._tokenizer.enable_truncation(limit)
            tokens = self._tokenizer.encode_batch(
                [prompt + text for text in texts] if prompt else texts
            )
            order = sorted(range(len(texts)), key=lambda number: len(tokens[number]), reverse=True)
            for start in range(0, len(order), BATCH):
                part = order[start : start + BATCH]
                ids, mask = np.zeros((2, len(part), len(tokens[part[0]])), np.int64)
                for row, number in enumerate(part):
                    length = len(tokens[number])
                    ids[row, :length], mask[row, :length] = tokens[number].ids, 1
                vectors[part] = self._programs(precision)([ids, mask])[0]
        return vectors


def windows_of(texts: Sequence[str], tokens: Iterable[Any], size: int) -> list[list[str]]:
    """Texts, and their parts from the word on at which ``size`` tokens (``tokenizers.Encoding``) end, and so on."""
    found, size = [], max(1, size)
    for text, token in zip(texts, tokens, strict=True):
        words, spans, starts = token.word_ids, token.offsets, [0]
        while (end := starts[-1] + size) < len(spans):
            start = words.index(words[end])  # the first token of the word at which the window ends
            starts.append(start if start > starts[-1] else end)
        places = [*(spans[start][0] for start in starts[1:]), len(text)]
        found.append([text, *(text[start:end] for start, end in pairwise(places))])
    return found


def find_compiled(name: str) -> CompiledEncoder | None:
    """The encoder of a ``model_name``, if it has been converted."""
    return (
        CompiledEncoder(_folder(name)) if _folder(name).is_dir() and find_spec("openvino") else None
    )


def compiled(encoder: Any) -> Any:
    """The encoder of a checkpoint as OpenVINO runs it; itself without OpenVINO, or if its vectors would be others."""
    if type(encoder).__name__ != "SentenceEncoder" or not _can_run(encoder):
        return encoder
    name, network = encoder.model_name, encoder.network

    def write(folder: Path) -> None:
        from pyterrier_graph.encoders.sentence_encoder import prompts_of

        _save([*network], "sentence_embedding", folder)
        network.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
        limits = encoder.max_query_tokens, encoder.max_passage_tokens
        about = name, encoder._dimension, *zip(prompts_of(network), limits, strict=True)
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        _compare(CompiledEncoder(folder), network)

    _convert_once(name, write)
    return find_compiled(name) or encoder


def compiled_queries(encoder: Any, *, convert: bool) -> Any:
    """The program that turns ids and mask, (queries, tokens), into the vectors of a TokenEncoder, (queries, tokens, d).

    None if OpenVINO cannot run it, or was not asked to ``convert`` these weights. Threads must not share it.
    """
    if not _can_run(encoder):
        return None
    place = _folder(name := f"queries {encoder.fingerprint()}")

    def write(folder: Path) -> None:
        network = [
            module for module in encoder.network if type(module).__name__ != "MultiVectorMask"
        ]
        _save(network, "token_embeddings", folder)
        given, kept = encoder._features(EXAMPLES, "query")
        found = _program(folder, "f32")(
            [given["input_ids"].numpy(), given["attention_mask"].numpy()]
        )[0]
        exact = encoder.network(given, task="query")["token_embeddings"].detach().numpy()
        if not np.abs(found - exact)[kept.numpy()].max() < 1e-3:
            raise ValueError("its vectors differ")

    if convert:
        _convert_once(name, write)
    return _program(place, "f32") if place.is_dir() else None


def _can_run(encoder: Any) -> bool:
    return (
        encoder.dtype == "auto"
        and encoder.network.device.type == "cpu"
        and find_spec("openvino") is not None
    )


def _convert_once(name: str, write: Callable[[Path], None]) -> None:
    """Writes the folder of a name, unless it is there, or this version of OpenVINO has failed to."""
    place = _folder(name)
    refused = place.with_name(f"{place.name}-{version('openvino')}")
    if not place.is_dir() and not refused.exists():
        tracing = logging.getLogger("transformers.modeling_utils")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # the conversion traces the network for inputs of any size
            tracing.disabled = True  # and reads its properties, of which one warns
            try:
                with atomic_folder(place, dict(KIND)) as folder:
                    write(folder)
            except Exception as error:  # of many kinds, for networks that OpenVINO cannot convert
                logger.info("torch runs %s, since OpenVINO cannot", name, exc_info=True)
                if not isinstance(error, OSError):  # such as of a full disk
                    refused.touch()
            finally:
                tracing.disabled = False


def compiled_checkpoint(checkpoint: str) -> Any:
    """The :func:`compiled` encoder of a checkpoint; once it is converted, neither it nor torch is loaded."""
    known = _folder(f"{checkpoint_state(checkpoint)} {version('pyterrier_graph')}").with_suffix(
        ".name"
    )
    has_files = checkpoint in NAMES or os.path.isdir(
        checkpoint
    )  # a model hub may have another version
    if (
        has_files
        and known.is_file()
        and (found := find_compiled(known.read_text(encoding="utf-8")))
    ):
        return found
    from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

    encoder = compiled(SentenceEncoder(checkpoint, verbose=False))
    if isinstance(encoder, CompiledEncoder):
        with suppress(OSError):  # of a home that cannot be written
            known.write_text(encoder.model_name, encoding="utf-8")
    return encoder


def _restored(name: str, files: dict[str, bytes]) -> CompiledEncoder:
    """A pickled encoder; its files are written where they are missing, as on another machine."""
    place = _folder(name)
    if not place.is_dir():
        with locked(place.parent, waiting=lambda: None):  # for another process that writes them
            if not place.is_dir():
                with atomic_folder(place, dict(KIND)) as folder:
                    for file, content in files.items():
                        (folder / file).write_bytes(content)
    return CompiledEncoder(place)


def _compare(made: CompiledEncoder, network: Any) -> None:
    """Raises ValueError unless the vectors are those of the network of sentence-transformers."""
    queries, passages = network.encode_query(EXAMPLES), network.encode_document(EXAMPLES)
    pairs = zip(made.encode_docs(EXAMPLES), passages, strict=True)
    cosines = [one @ other / np.linalg.norm(one) / np.linalg.norm(other) for one, other in pairs]
    if not (np.abs(made.encode_queries(EXAMPLES) - queries).max() < 1e-3 and min(cosines) > 0.9999):
        raise ValueError("its vectors differ")


def _save(modules: Sequence[Any], output: str, folder: Path) -> None:
    """Converts what some modules of sentence-transformers compute one after the other, of ids and a mask."""
    import torch

    class Vectors(torch.nn.Sequential):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward({"input_ids": ids, "attention_mask": mask})[output]

    example = torch.tensor([[5, 6, 7], [5, 6, 7]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    made = _openvino().convert_model(Vectors(*modules).eval(), example_input=example)
    _openvino().save_model(made, folder / NETWORK, False)


@cache
def _core() -> Any:
    return _openvino().Core()


def _program(folder: Path, precision: str) -> Any:
    threads = int(
        os.environ.get("OMP_NUM_THREADS", "0").partition(",")[0]
    )  # 0: as many as there are cores
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    return _core().compile_model(str(folder / NETWORK), "CPU", options)


def _openvino() -> Any:
    """OpenVINO, which would report its use to a server, from a forked process, if its telemetry could be imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def _folder(name: str) -> Path:
    return Path(
        pt.io.pyterrier_home(),
        "pyterrier_graph",
        "compiled",
        sha256(name.encode()).hexdigest()[:16],
    )
