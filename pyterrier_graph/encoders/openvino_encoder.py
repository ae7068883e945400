"""A bi-encoder that OpenVINO runs on a CPU, without torch; it needs the extra ``[openvino]``.

A checkpoint is converted once, and kept in PyTerrier's home. Queries are encoded in float32, passages in bfloat16 where
the CPU computes it natively. A conversion is used only if its vectors agree with those of torch: vectors of queries to
1e-3, and vectors of passages with a cosine of 0.9999.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import WithSignature, check_frame, check_texts, warn_of_rewritten
from pyterrier_graph.encoders.names import NAMES, checkpoint_state
from pyterrier_graph.storage.artifact import atomic_folder, read_meta

logger = logging.getLogger(__name__)

NETWORK, TOKENIZER = "network.xml", "tokenizer.json"
KIND = {"type": "encoder", "format": "openvino"}
BATCH = 16
EXAMPLES = [
    "Who?",
    "How are TIES broken, and where?",
    "A longer text: " + "it is read in full, or cut. " * 30,
]


def load_encoder(name: str, *, device: str | None = None, dtype: Any = "auto") -> Any:
    """Loads a checkpoint by its name: as an :class:`OpenVINOEncoder` where possible, else as a ``SentenceEncoder``.

    Both have the same ``model_name``, and vectors of the same texts that agree. Once a checkpoint in a folder, or the
    default one, is converted, neither torch nor the checkpoint is loaded.
    """
    wanted = dtype == "auto" and device in (None, "cpu") and find_spec("openvino") is not None
    if wanted and (name in NAMES or os.path.isdir(name)):  # a model hub may have another version
        with suppress(OSError, ValueError):
            folder = _folder(_note(name).read_text(encoding="utf-8"))
            return OpenVINOEncoder(name, folder, read_meta(folder, KIND))
    from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder(name, device=device, dtype=dtype, verbose=False)
    if wanted and encoder.network.device.type == "cpu":
        if converted := _converted(encoder):
            with suppress(OSError):  # the home may be read-only
                _note(name).write_text(encoder.model_name, encoding="utf-8")
            return OpenVINOEncoder(name, converted, read_meta(converted, KIND))
    return encoder


class OpenVINOEncoder(WithSignature, pt.Transformer):
    """Encodes queries and passages by a converted checkpoint. As a transformer, it adds ``query_vec`` to queries.

    Args:
        encoder: The name of the checkpoint, for :func:`load_encoder`.
        folder: Folder of the converted checkpoint.
        meta: The contents of its ``pt_meta.json``.
    """

    schematic = {
        "label": "OpenVINOEncoder",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }
    verbose = False

    def __init__(self, encoder: str, folder: Path, meta: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.encoder, self.folder = encoder, folder
        self.model_name: str = meta["model_name"]
        self.dimension: int = meta["dimension"]
        self._prompts, self._limits = meta["prompts"], meta["limits"]
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._lock = Lock()  # threads must not share the tokenizer and the networks
        self._network = cache(lambda precision: _compile(folder, precision))

    def __repr__(self) -> str:
        return f"OpenVINOEncoder({self.model_name.rpartition('@')[0]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return load_encoder, (self.encoder,)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds ``query_vec`` to ``qid, query``."""
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        return inp.assign(query_vec=[*self.encode_queries(inp["query"].tolist())])

    def query_encoder(self) -> pt.Transformer:
        """Returns this transformer."""
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimension)."""
        texts = check_texts(texts)
        warn_of_rewritten(texts)
        return self._encode(texts, "query", "f32")

    def encode_docs(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimension)."""
        native = "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return self._encode(check_texts(texts), "passage", "bf16" if native else "f32")

    def _encode(self, texts: list[str], task: str, precision: str) -> np.ndarray:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        with self._lock:
            self._tokenizer.enable_truncation(self._limits[task])
            tokens = self._tokenizer.encode_batch([self._prompts[task] + text for text in texts])
            order = sorted(range(len(texts)), key=lambda number: len(tokens[number]), reverse=True)
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                batch = [tokens[row] for row in rows]
                for padded in batch:
                    padded.pad(len(batch[0]))
                ids = np.array([padded.ids for padded in batch])
                mask = np.array([padded.attention_mask for padded in batch])
                vectors[rows] = self._network(precision)([ids, mask])[0]
        return vectors


# --- conversion


def _converted(encoder: Any) -> Path | None:
    """The folder with the conversion of a ``SentenceEncoder``; None if its vectors would be others."""
    folder = _folder(encoder.model_name)
    failed = folder.with_name(f"{folder.name}-{version('openvino')}")  # by this version
    if not folder.is_dir() and not failed.exists():
        try:
            with _quiet_tracing(), atomic_folder(folder, meta := _meta(encoder)) as new:
                _write(encoder, new)
                _compare(OpenVINOEncoder(encoder.encoder, new, meta), encoder.network)
        except OSError:  # a full disk, or another process converts it
            logger.info("%r was not converted", encoder, exc_info=True)
        except Exception:  # of many kinds, for networks that OpenVINO cannot convert
            logger.info("torch runs %r, since OpenVINO cannot", encoder, exc_info=True)
            failed.touch()
    return folder if folder.is_dir() else None


def _write(encoder: Any, folder: Path) -> None:
    """Writes the network as a function of token ids and mask, both of shape (texts, tokens), and its tokenizer."""
    import openvino
    import torch
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    class Vectors(torch.nn.Sequential):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            features = {"input_ids": ids, "attention_mask": mask}
            return super().forward(features)["sentence_embedding"]

    example = torch.tensor([[5, 6, 7], [5, 6, 7]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    traced = TorchScriptPythonDecoder(Vectors(*encoder.network).eval(), example_input=example)
    # openvino.convert_model does the same, and reports its use to a server
    frontend = FrontEndManager().load_by_framework("pytorch")
    network = frontend.convert(frontend.load(traced))
    openvino.save_model(network, folder / NETWORK, False)
    encoder.network.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))


def _meta(encoder: Any) -> dict[str, Any]:
    """What a conversion needs to know of an encoder, for ``pt_meta.json``."""
    from pyterrier_graph.encoders.sentence_encoder import prompts_of

    query, passage = prompts_of(encoder.network)
    return KIND | {
        "model_name": encoder.model_name,
        "dimension": encoder.network.get_embedding_dimension(),
        "prompts": {"query": query, "passage": passage},
        "limits": {"query": encoder.max_query_tokens, "passage": encoder.max_passage_tokens},
    }


def _compare(converted: OpenVINOEncoder, network: Any) -> None:
    """Raises ValueError unless the vectors agree with those of a network of sentence-transformers."""
    from sentence_transformers.util import pairwise_cos_sim

    queries, passages = network.encode_query(EXAMPLES), network.encode_document(EXAMPLES)
    difference = np.abs(converted.encode_queries(EXAMPLES) - queries).max()
    cosines = pairwise_cos_sim(converted.encode_docs(EXAMPLES), passages)
    if not (difference < 1e-3 and cosines.min() > 0.9999):
        raise ValueError("its vectors differ")


@contextmanager
def _quiet_tracing() -> Iterator[None]:
    """A block without the warnings of tracing a network for inputs of any size."""
    tracing = logging.getLogger("transformers.modeling_utils")
    disabled = tracing.disabled
    tracing.disabled = True  # tracing reads all properties of the network, one of which warns
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tracing.disabled = disabled


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _compile(folder: Path, precision: str) -> Any:
    threads = int(os.environ.get("OMP_NUM_THREADS", "0").partition(",")[0])  # 0: one per core
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    return _core().compile_model(str(folder / NETWORK), "CPU", options)


def _folder(model_name: str) -> Path:
    digest = sha256(model_name.encode()).hexdigest()[:16]
    return Path(pt.io.pyterrier_home(), "pyterrier_graph", "openvino", digest)


def _note(checkpoint: str) -> Path:
    """The file with the ``model_name`` of a checkpoint, by the state of the checkpoint's files."""
    state = f"{checkpoint_state(checkpoint)} {version('pyterrier_graph')}"
    return _folder(state).with_suffix(".name")
