"""The token-level text encoder, a sentence-transformers ``MultiVectorEncoder``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import batch_to_device, load_file_path
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.encoders.checkpoints import (
    SAFE_WEIGHTS,
    DType,
    device_of,
    loading,
    positions_of,
    precision,
    set_lengths,
    share,
)
from pyterrier_graph.encoders.names import DEFAULT, checkpoint_name, resolve
from pyterrier_graph.graphs.csr import offsets, ranges
from pyterrier_graph.storage.artifact import weights_sha256

LENGTHS = ("max_passage_tokens", "max_query_tokens", "expanded_query_tokens")
# what the files of a late-interaction model name: modules, or architectures
LATE_INTERACTION = {
    "modules.json": ("Dense", "MultiVectorMask"),
    "config.json": ("HF_ColBERT", "ForRetrieval"),
}


@dataclass(frozen=True)
class TokenStates:
    """The token matrices ``h_i`` of several nodes, one below the other.

    Attributes:
        values: Token vectors, shape (tokens, d).
        offsets: The tokens of node i are the rows ``offsets[i]:offsets[i + 1]``; shape (nodes + 1,), int64.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def pack(cls, matrices: Sequence[Tensor], empty: Tensor) -> TokenStates:
        """Packs matrices of shape (tokens_i, d). The result for no matrices is ``empty``, of shape (0, d)."""
        lengths = [len(matrix) for matrix in matrices]
        bounds = offsets(torch.tensor(lengths, dtype=torch.long, device=empty.device))
        return cls(torch.cat([empty, *matrices]), bounds)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, node: int) -> Tensor:
        """The matrix of one node, shape (tokens_i, d)."""
        start = int(self.offsets[node])
        end = int(self.offsets[node + 1])
        return self.values[start:end]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens per node, shape (nodes,)."""
        return self.offsets.diff()

    @property
    def row_index(self) -> Tensor:
        """The node of each token, shape (tokens,)."""
        return torch.repeat_interleave(self.lengths)

    @property
    def position(self) -> Tensor:
        """The position of each token in its node, shape (tokens,)."""
        first_row = self.offsets[:-1][self.row_index]  # of the node of each token
        row = torch.arange(len(self.values), device=self.values.device)
        return row - first_row

    def select(self, nodes: Tensor) -> TokenStates:
        """The matrices of some nodes, in the order of ``nodes``, which may have a node several times."""
        everything = torch.arange(len(self), device=nodes.device)
        if torch.equal(nodes, everything):
            return self  # without a copy
        bounds, rows = ranges(self.offsets[nodes], self.lengths[nodes])
        return TokenStates(self.values[rows], bounds)

    def with_values(self, values: Tensor) -> TokenStates:
        """Other vectors for the same tokens."""
        return TokenStates(values, self.offsets)

    def to(self, *args: Any, **kwargs: Any) -> TokenStates:
        """As ``Tensor.to``; a dtype is only for the vectors."""
        values = self.values.to(*args, **kwargs)
        return TokenStates(values, self.offsets.to(values.device))


class TokenEncoder:
    """Encodes texts into one unit vector per token, as ColBERT does (Albarede et al. 2023, Sect. 4.2, "Encoder").

    Args:
        encoder: The name or folder of a checkpoint: a late-interaction model (Stanford ColBERT, PyLate,
            sentence-transformers), or a ``SentenceTransformer`` or any Hugging Face encoder, whose hidden states are
            used without a projection. Or a ``MultiVectorEncoder``, whose lengths change to the ones below.
        max_passage_tokens: Passages are cut after this many tokens, by default 180, as in the paper, or after as many
            as the checkpoint can read if these are fewer.
        max_query_tokens: Queries are cut after this many tokens, by default 120, as in the paper, or after as many as
            the checkpoint can read if these are fewer. A ColBERT checkpoint does not cut them at its own length.
        expanded_query_tokens: A ColBERT checkpoint fills up shorter queries to this length with mask tokens, which is
            its query augmentation; by default to its own length, which is 32 in most checkpoints.
        batch_size: Number of texts per forward pass.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding: ``'float32'``, ``'bfloat16'``, ``'float16'`` or ``'auto'``; see
            :mod:`~pyterrier_graph.encoders.checkpoints`.

    Attributes:
        name: The checkpoint's name.
        network: The ``MultiVectorEncoder``.
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | MultiVectorEncoder = DEFAULT,
        *,
        max_passage_tokens: int | None = None,
        max_query_tokens: int | None = None,
        expanded_query_tokens: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
    ) -> None:
        self.batch_size = batch_size
        self.dtype = dtype
        if isinstance(encoder, MultiVectorEncoder):
            self.network = encoder
            checkpoint = encoder.model_card_data.base_model or type(encoder).__name__
        else:
            checkpoint = resolve(encoder)
            self.network = load_multi_vector_encoder(checkpoint, device)
        self.name = checkpoint_name(checkpoint)
        if os.path.isdir(self.name):
            self.name = Path(self.name).resolve().name
        transformer, *_ = share(self.network)
        longest = [positions_of(transformer.model.config)]
        self.max_query_tokens, self.max_passage_tokens = set_lengths(
            [transformer], longest, max_query_tokens, max_passage_tokens
        )
        expansion = transformer.query_expansion
        if expansion is not None:
            length = expanded_query_tokens or expansion["length"]
            length = min(length, self.max_query_tokens)
            # "fixed" would cut all queries at its length, whatever query_length is
            transformer.query_expansion = expansion | {"strategy": "min", "length": length}
        self.expanded_query_tokens = expanded_query_tokens

    def __repr__(self) -> str:
        return f"TokenEncoder({self.name!r})"

    @property
    def dimension(self) -> int:
        """Length d of a token vector."""
        return cast(int, self.network.get_embedding_dimension())

    @property
    def empty(self) -> Tensor:
        """The token vectors of an empty text, shape (0, d)."""
        weights = next(self.network.parameters())
        return weights.new_zeros(0, self.dimension)

    def encode_passages(self, texts: Sequence[str]) -> TokenStates:
        """Encodes passages or titles. An empty text has no token vectors."""
        return self._encode(texts, "document")

    def encode_queries(self, texts: Sequence[str]) -> TokenStates:
        """Encodes queries."""
        return self._encode(texts, "query")

    def forward_passages(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_passages`, with gradients."""
        return self._forward(texts, "document")

    def forward_queries(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_queries`, with gradients."""
        return self._forward(texts, "query")

    def tokens(self, text: str, *, query: bool = False) -> list[str]:
        """Returns the word pieces whose token vectors a text has."""
        if not text.strip():
            return []
        task = "query" if query else "document"
        with torch.inference_mode():
            output, mask = self._output([text], task)
        ids = output["input_ids"][mask]  # (tokens,)
        return self.network.tokenizer.convert_ids_to_tokens(ids.tolist())

    def _encode(self, texts: Sequence[str], task: str) -> TokenStates:
        distinct = [text for text in dict.fromkeys(texts) if text.strip()]
        order = np.argsort([-len(text) for text in distinct])  # for little padding
        matrices: dict[str, Tensor] = {}  # token vectors of each text
        if self.network.training:
            self.network.eval()
        with torch.inference_mode(), precision(self.dtype, self.network.device):
            for start in range(0, len(order), self.batch_size):
                numbers = order[start : start + self.batch_size]
                batch = [distinct[number] for number in numbers]
                batch_matrices = self._matrices(batch, task)
                matrices.update(zip(batch, batch_matrices, strict=True))
        empty = self.empty
        return self._pack([matrices.get(text, empty) for text in texts])

    def _forward(self, texts: Sequence[str], task: str) -> TokenStates:
        matrices = [self.empty] * len(texts)
        filled = [number for number, text in enumerate(texts) if text.strip()]
        if filled:
            batch = [texts[number] for number in filled]
            for number, matrix in zip(filled, self._matrices(batch, task), strict=True):
                matrices[number] = matrix
        return self._pack(matrices)

    def _matrices(self, texts: list[str], task: str) -> list[Tensor]:
        """The token vectors of a batch of texts, of which none is empty."""
        output, masks = self._output(texts, task)
        vectors = output["token_embeddings"].float()  # (texts, tokens, d)
        return [states[mask] for states, mask in zip(vectors, masks, strict=True)]

    def _output(self, texts: list[str], task: str) -> tuple[dict[str, Tensor], Tensor]:
        """The network's output for texts, and a mask of the tokens that have vectors, shape (texts, tokens)."""
        prompt = self.network.prompts.get(task)
        features = self.network.preprocess(texts, prompt=prompt, task=task)
        features = batch_to_device(features, self.network.device)
        output = self.network(features, task=task)
        return output, output["attention_mask"].bool()

    def _pack(self, matrices: list[Tensor]) -> TokenStates:
        """Packs the matrices of texts, at unit length, which not every model gives them."""
        states = TokenStates.pack(matrices, self.empty)
        unit = functional.normalize(states.values, dim=-1)
        return states.with_values(unit)

    def reduced(self, texts: Sequence[str], dimension: int = 128) -> TokenEncoder:
        """This encoder with shorter token vectors, which need a fraction of the memory and time.

        Token vectors are projected onto their principal directions. The projection can be trained like other weights.
        One thread computes it: another number of threads would change its last bits, and thus :meth:`fingerprint`.

        Args:
            texts: A sample of passages; some hundreds are enough.
            dimension: The new length d of a token vector, less than the present one.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            vectors = self.encode_passages(texts).values  # (tokens, d)
            directions = principal_directions(vectors, dimension)
        finally:
            torch.set_num_threads(threads)
        head = Dense(
            self.dimension,
            dimension,
            bias=False,
            activation_function=nn.Identity(),
            init_weight=directions,
            module_input_name="token_embeddings",
        )
        modules = [module for module in self.network if not isinstance(module, Normalize)]
        names = (*LENGTHS, "batch_size", "dtype")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        network = _multi_vector_encoder([*modules, head], self.network)
        encoder = TokenEncoder(network, **options)
        encoder.name = f"{self.name} ({dimension} principal directions)"
        return encoder

    def fingerprint(self) -> str:
        """SHA-256 of the weights and lengths, which stored vectors keep to recognize their encoder."""
        lengths = [getattr(self, name) for name in LENGTHS]
        after = " ".join(str(length) for length in lengths if length)
        return weights_sha256(self.network, after=after)


def open_encoder(encoder: Any, device: str | None = None, dtype: DType = "auto") -> TokenEncoder:
    """Returns a :class:`TokenEncoder` as it is, and loads a checkpoint by its name or folder."""
    if isinstance(encoder, TokenEncoder):
        return encoder
    return TokenEncoder(encoder, device=device, dtype=dtype)


def principal_directions(vectors: Tensor, dimension: int) -> Tensor:
    """The directions in which some vectors, shape (n, d), are longest: orthonormal rows, shape (dimension, d).

    Vectors are not centered, so that cosines change as little as possible. A direction's largest entry is positive.
    """
    vectors = vectors.double()
    _, eigenvectors = torch.linalg.eigh(vectors.T @ vectors)  # in columns, the longest last
    directions = eigenvectors.T.flip(0)[:dimension]  # (dimension, d)
    column = directions.abs().argmax(1, keepdim=True)  # (dimension, 1)
    largest = directions.gather(1, column)
    directions = directions * largest.sign()
    return directions.float()


def load_multi_vector_encoder(name: str, device: str | None = None) -> MultiVectorEncoder:
    """Loads a checkpoint as a ``MultiVectorEncoder``, without random weights.

    sentence-transformers would add a random projection to 128 dimensions to a checkpoint that has none, and the
    encoder would be of no use before training. So only the transformer of such a checkpoint is taken.
    """
    device = str(device_of(device))
    with loading(name):
        kind: Any = MultiVectorEncoder if _is_late_interaction(name) else SentenceTransformer
        network = kind(name, device=device, model_kwargs=SAFE_WEIGHTS)
    if kind is MultiVectorEncoder:
        return network
    transformer, *_ = [module for module in network if isinstance(module, Transformer)]
    return _multi_vector_encoder([transformer, MultiVectorMask()], network)


def _multi_vector_encoder(modules: list[nn.Module], like: Any) -> MultiVectorEncoder:
    """An encoder of these modules that normalizes token vectors, with another encoder's prompts and device."""
    modules = [*modules, Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, prompts=like.prompts, device=str(like.device))


def _is_late_interaction(name: str) -> bool:
    """Whether the checkpoint is a late-interaction model, or has a projection that can be one of token vectors."""
    for file, marks in LATE_INTERACTION.items():
        path = load_file_path(name, file)
        if not path:
            continue
        content = Path(path).read_text(encoding="utf-8")
        if any(mark in content for mark in marks):
            return True
    return False
