"""A bi-encoder that OpenVINO runs on a CPU, without torch; it needs the extra ``[openvino]``.

A checkpoint is converted once, and kept in PyTerrier's home. Queries are encoded in float32, passages in bfloat16 where
the CPU computes it natively. A conversion is used only if its vectors agree with torch's: vectors of queries to 1e-3,
and vectors of passages with a cosine of 0.9999.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
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

from pyterrier_graph.checks import WithSignature, check_frame, warn_of_rewritten
from pyterrier_graph.encoders.names import NAMES, checkpoint_state
from pyterrier_graph.storage.artifact import atomic_folder, read_meta

logger = logging.getLogger(__name__)

NETWORK = "network.xml"
TOKENIZER = "tokenizer.json"
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
    has_openvino = find_spec("openvino") is not None
    can_convert = has_openvino and dtype == "auto" and device in (None, "cpu")
    is_local = name in NAMES or os.path.isdir(name)  # a model hub may have another version
    key = f"{checkpoint_state(name)} {version('pyterrier_graph')}"
    folder = _folder(key)
    if can_convert and is_local and folder.is_dir():
        return OpenVINOEncoder(name, folder, read_meta(folder, KIND))
    from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder(name, device=device, dtype=dtype, verbose=False)
    if not can_convert or encoder.network.device.type != "cpu":
        return encoder
    if not is_local:
        folder = _folder(encoder.model_name)
    if folder.is_dir() or _convert(encoder, folder):
        return OpenVINOEncoder(name, folder, read_meta(folder, KIND))
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

    def __init__(self, encoder: str, folder: Path, meta: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.encoder = encoder
        self.folder = folder
        self.model_name: str = meta["model_name"]
        self.dimension: int = meta["dimension"]
        self._prompts = meta["prompts"]
        self._limits = meta["limits"]
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._lock = Lock()  # threads must not share the tokenizer and the networks
        self._network = cache(lambda precision: _compile(folder, precision))

    def __repr__(self) -> str:
        name, _, _ = self.model_name.rpartition("@")
        return f"OpenVINOEncoder({name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return load_encoder, (self.encoder,)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Adds ``query_vec`` to ``qid, query``."""
        inp = check_frame(inp, self, texts=("query",))
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        vectors = self.encode_queries(inp["query"].tolist())
        return inp.assign(query_vec=list(vectors))

    def query_encoder(self) -> pt.Transformer:
        """Returns this transformer."""
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimension)."""
        warn_of_rewritten(texts)
        return self._encode(texts, "query", "f32")

    def encode_docs(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimension)."""
        capabilities = _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precision = "bf16" if "BF16" in capabilities else "f32"
        return self._encode(texts, "passage", precision)

    def _encode(self, texts: Sequence[str], task: str, precision: str) -> np.ndarray:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        with self._lock:
            self._tokenizer.enable_truncation(self._limits[task])
            inputs = [self._prompts[task] + text for text in texts]
            tokens = self._tokenizer.encode_batch(inputs)
            lengths = [len(encoding) for encoding in tokens]
            order = np.argsort(-np.array(lengths), kind="stable")  # the longest texts first
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                batch = [tokens[row] for row in rows]
                longest = len(batch[0])
                for encoding in batch:
                    encoding.pad(longest)
                ids = np.array([encoding.ids for encoding in batch])  # (texts, tokens)
                mask = np.array([encoding.attention_mask for encoding in batch])
                network = self._network(precision)  # compiled once
                vectors[rows] = network([ids, mask])[0]
        return vectors


# --- conversion


def _convert(encoder: Any, folder: Path) -> bool:
    """Converts a ``SentenceEncoder`` into a folder; returns False if this fails or changes its vectors."""
    failed = folder.with_name(f"{folder.name}-{version('openvino')}")  # by this version
    if failed.exists():
        return False
    meta = _meta(encoder)
    try:
        with warnings.catch_warnings(action="ignore"), atomic_folder(folder, meta) as new:
            _write(encoder, new)
            converted = OpenVINOEncoder(encoder.encoder, new, meta)
            _compare(converted, encoder.network)
    except Exception as error:  # of many kinds, for networks that OpenVINO cannot convert
        logger.info("torch runs %r", encoder, exc_info=True)
        if not isinstance(error, OSError):  # a full disk, or another process converts it
            failed.touch()
    return folder.is_dir()


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

    ids = torch.tensor([[5, 6, 7], [5, 6, 7]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    vectors = Vectors(*encoder.network).eval()
    traced = TorchScriptPythonDecoder(vectors, example_input=(ids, mask))
    # openvino.convert_model does the same, and reports its use to a server
    frontend = FrontEndManager().load_by_framework("pytorch")
    model = frontend.load(traced)
    network = frontend.convert(model)
    openvino.save_model(network, folder / NETWORK, compress_to_fp16=False)
    tokenizer = encoder.network.tokenizer.backend_tokenizer
    tokenizer.save(str(folder / TOKENIZER))


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
    """Raises ValueError unless a network of sentence-transformers makes the same vectors, but for rounding."""
    from sentence_transformers.util import pairwise_cos_sim

    queries = network.encode_query(EXAMPLES)
    passages = network.encode_document(EXAMPLES)
    differences = np.abs(converted.encode_queries(EXAMPLES) - queries)
    cosines = pairwise_cos_sim(converted.encode_docs(EXAMPLES), passages)
    agree = differences.max() < 1e-3 and cosines.min() > 0.9999  # False for NaN
    if not agree:
        raise ValueError("its vectors differ")


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _compile(folder: Path, precision: str) -> Any:
    """The network of a folder, which computes in ``precision``."""
    threads, _, _ = os.environ.get("OMP_NUM_THREADS", "0").partition(",")  # 0: one per core
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": int(threads)}
    return _core().compile_model(str(folder / NETWORK), "CPU", options)


def _folder(key: str) -> Path:
    """The folder of a conversion."""
    digest = sha256(key.encode()).hexdigest()[:16]
    return Path(pt.io.pyterrier_home(), "pyterrier_graph", "openvino", digest)
