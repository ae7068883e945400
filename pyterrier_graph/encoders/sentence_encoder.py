"""SentenceEncoder: one vector per query or passage, by a ``SentenceTransformer``; a bi-encoder of pyterrier_dr."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from pyterrier_dr import BiEncoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import batch_to_device
from torch import Tensor

from pyterrier_graph.checks import (
    WithSignature,
    check_frame,
    check_texts,
    warn_of_rewritten,
)
from pyterrier_graph.encoders.checkpoints import (
    SAFE_WEIGHTS,
    DType,
    device_of,
    keep_full_precision,
    loading,
    positions_of,
    precision,
    set_lengths,
    share,
)
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name, resolve
from pyterrier_graph.storage.artifact import weights_sha256

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
NORMALIZED_SCALE = 20.0


class SentenceEncoder(WithSignature, BiEncoder):
    """Encodes queries and passages by a SentenceTransformer: a bi-encoder of pyterrier_dr.

    It is used like any other ``pyterrier_dr.BiEncoder``::

        index = pyterrier_dr.FlexIndex("passages.flex")
        (encoder.doc_encoder() >> index).index(dataset.get_corpus_iter())
        retriever = encoder.query_encoder() >> index.retriever()

    The similarity of a query and a passage is the dot product of their vectors. It is the cosine if the checkpoint
    normalizes its vectors. :class:`~pyterrier_graph.DualEncoder` is a SentenceEncoder that can be trained.

    Args:
        encoder: The name or folder of a SentenceTransformer, or of any Hugging Face encoder, whose token states are
            then averaged.
        max_query_tokens: Queries are cut after this many tokens, special tokens included, by default 120, or after as
            many as the checkpoint can read if these are fewer.
        max_passage_tokens: Passages are cut after this many tokens, special tokens included, by default 180, or after
            as many as the checkpoint can read if these are fewer.
        batch_size: Number of texts that are encoded at once.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding; see :mod:`~pyterrier_graph.encoders.checkpoints`.
        verbose: Whether to show progress.

    Attributes:
        network: The SentenceTransformer.
        similarity: ``'cosine'`` if the checkpoint normalizes its vectors, else ``'dot'``.
    """

    schematic = {
        "label": "SentenceEncoder",
        "help_url": "https://pypi.org/project/pyterrier-graph/",
    }

    def __init__(
        self,
        encoder: str | os.PathLike[str] = DEFAULT,
        *,
        max_query_tokens: int | None = None,
        max_passage_tokens: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
        verbose: bool = True,
    ) -> None:
        BiEncoder.__init__(self, batch_size=batch_size, verbose=verbose)
        self.encoder = str(encoder)
        self.device = device
        self.dtype = dtype
        self.network = load_sentence_transformer(resolve(encoder), device).eval()
        self.max_query_tokens: Any = max_query_tokens
        self.max_passage_tokens: Any = max_passage_tokens
        self._limit()

    def _limit(self) -> None:
        """Sets the numbers of tokens that the network reads."""
        modules = share(self.network)
        longest = []
        for module in modules:
            longest.append(module.max_seq_length)
            longest.append(positions_of(module.model.config))
        self.max_query_tokens, self.max_passage_tokens = set_lengths(
            modules, longest, self.max_query_tokens, self.max_passage_tokens
        )

    @property
    def similarity(self) -> Literal["dot", "cosine"]:
        """``'cosine'`` if vectors have length 1, else ``'dot'``."""
        if is_normalized(self.network):
            return "cosine"
        return "dot"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({checkpoint_name(self.encoder)!r})"

    @property
    def model_name(self) -> str:
        """The checkpoint's name, and a digest of all that vectors depend on but the precision, such as the weights.

        pyterrier_dr tells encoders apart by this name, and stored vectors are looked up by it.
        """
        modules = self.network.modules()
        pooling = [module.pooling_mode for module in modules if isinstance(module, Pooling)]
        lengths = self.max_query_tokens, self.max_passage_tokens, self.network.truncate_dim
        about = lengths, self.similarity, prompts_of(self.network), pooling
        digest = weights_sha256(self.network, after=repr(about))
        return f"{checkpoint_name(self.encoder)}@{digest[:16]}"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Encodes queries or passages, or scores pairs of them, depending on the columns of the frame."""
        inp = check_frame(inp, self, texts=("query",))
        return super().transform(inp)

    def query_encoder(
        self, verbose: bool | None = None, batch_size: int | None = None
    ) -> pt.Transformer:
        """A transformer that adds the column ``query_vec`` to ``qid, query``."""
        return super().query_encoder(False, batch_size)

    def doc_encoder(
        self, verbose: bool | None = None, batch_size: int | None = None
    ) -> pt.Transformer:
        """A transformer that adds the column ``doc_vec`` to ``docno, text``."""
        return super().doc_encoder(False, batch_size)

    def encode_queries(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of queries, float32 of shape (queries, dimensions)."""
        texts = check_texts(texts)
        warn_of_rewritten(texts)
        return self._encode(self.network.encode_query, texts, batch_size)

    def encode_docs(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Vectors of passages, float32 of shape (passages, dimensions)."""
        texts = check_texts(texts)
        return self._encode(self.network.encode_document, texts, batch_size)

    def _encode(
        self, encode: Callable[..., Any], texts: list[str], batch_size: int | None
    ) -> np.ndarray:
        truncated = self.network.truncate_dim is not None  # then shorter than 1
        normalize = truncated and self.similarity == "cosine"
        with precision(self.dtype, self.network.device):
            vectors = encode(
                texts,
                batch_size=batch_size or self.batch_size,
                show_progress_bar=False,
                normalize_embeddings=normalize,
            )
        dimension: Any = self.network.get_embedding_dimension()
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), dimension)


def load_sentence_transformer(checkpoint: str, device: str | None) -> SentenceTransformer:
    """Loads a checkpoint; weights that it lacks are drawn with seed 0."""
    name = str(device_of(device))
    with torch.random.fork_rng(), loading(checkpoint):
        torch.manual_seed(0)
        network = SentenceTransformer(checkpoint, device=name, model_kwargs=SAFE_WEIGHTS)
    network.similarity_fn_name = "cosine" if is_normalized(network) else "dot"
    for module in network.modules():
        if isinstance(module, Dense):  # else half-precision vectors would not have length 1
            keep_full_precision(module.linear)
    return network


def is_normalized(network: SentenceTransformer) -> bool:
    """Whether vectors have length 1, so that their dot products are cosines."""
    return any(isinstance(module, Normalize) for module in network.modules())


def scale_of(scale: float | None, normalized: bool) -> float:
    """The factor of dot products in a loss: ``scale``, or by default 1, and 20 for vectors of length 1."""
    if scale is not None:
        return scale
    if normalized:
        return NORMALIZED_SCALE
    return 1.0


def encoded(
    network: SentenceTransformer, texts: list[str], task: Literal["query", "document"]
) -> Tensor:
    """Vectors that gradients go through, shape (texts, d)."""
    query_prompt, document_prompt = prompts_of(network)
    prompt = query_prompt if task == "query" else document_prompt
    features = network.preprocess(texts, prompt=prompt or None, task=task)
    features = batch_to_device(features, network.device)
    output = network(features, task=task)
    return output["sentence_embedding"]


def prompts_of(network: SentenceTransformer) -> tuple[str, str]:
    """The texts that are put before each query and each passage; mostly empty."""
    prompts = network.prompts
    name = next((name for name in DOCUMENT_PROMPTS if name in prompts), "")
    query = prompts.get("query") or ""
    document = prompts.get(name) or ""
    return query, document
