"""The token-level text encoder, a sentence-transformers ``MultiVectorEncoder``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import batch_to_device, load_file_path
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.checks import check_choice, check_count, check_type
from pyterrier_graph.encoders.checkpoints import DEFAULT, SAFE_WEIGHTS, checkpoint_name, loading, resolve
from pyterrier_graph.encoders.devices import DType, device_of, dtype_of, precision
from pyterrier_graph.encoders.packaged_projection import LATE_INTERACTION, packaged_projection
from pyterrier_graph.encoders.principal_directions import principal_directions
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.word_pieces import WordPieces
from pyterrier_graph.graphs.csr import CSR, offsets

TEXTS_AT_ONCE = 256  # that are padded to one length
EXPECTED = "the name or folder of a checkpoint, or a MultiVectorEncoder"


class TokenEncoder:
    """Encodes texts into one unit vector per token, as ColBERT does (Albarede et al. 2023, Sect. 4.2, "Encoder").

    Args:
        encoder: The name or folder of a checkpoint: a late-interaction model (Stanford ColBERT, PyLate,
            sentence-transformers), or a ``SentenceTransformer`` or any Hugging Face encoder, whose hidden states are
            used without a projection. Or a ``MultiVectorEncoder``, whose lengths are changed to the ones given here.
        max_passage_tokens: Passages are cut after this many tokens (the paper: 180).
        max_query_tokens: Queries are cut after this many tokens (the paper: 120). A ColBERT checkpoint still appends
            mask tokens to queries that are shorter than its own length, but does not cut queries there.
        batch_size: Number of texts per forward pass.
        device: A device as torch names it; by default a GPU where there is one.
        dtype: The precision of encoding: ``'float32'``, ``'bfloat16'``, ``'float16'`` or ``'auto'``; see
            :mod:`~pyterrier_graph.encoders.devices`.
        projection: ``'late-interaction'`` projects the token vectors of the default encoder from 384 to 128 dimensions
            by a matrix that comes with the package, and was trained by MaxSim on questions about health and on
            docstrings: see :mod:`~pyterrier_graph.encoders.packaged_projection`. None uses them as they are.

    Attributes:
        name: The checkpoint's name.
        network: The ``MultiVectorEncoder``.

    Raises:
        ValueError: If a length is more than the model can read.
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | MultiVectorEncoder = DEFAULT,
        *,
        max_passage_tokens: int = 180,
        max_query_tokens: int = 120,
        batch_size: int = 32,
        device: str | None = None,
        dtype: DType = "auto",
        projection: Literal["late-interaction"] | None = None,
    ) -> None:
        check_type("encoder", encoder, (str, os.PathLike, MultiVectorEncoder), EXPECTED)
        self.max_passage_tokens = max_passage_tokens
        self.max_query_tokens = max_query_tokens
        self.batch_size = batch_size
        for name in ("max_passage_tokens", "max_query_tokens", "batch_size"):
            check_count(name, getattr(self, name))
        self.device = device
        self.dtype: DType = dtype
        if isinstance(encoder, MultiVectorEncoder):
            self.network = encoder if device is None else encoder.to(device_of(device))
            checkpoint = encoder.model_card_data.base_model or type(encoder).__name__
        else:
            checkpoint = resolve(encoder)
            self.network = load_multi_vector_encoder(checkpoint, device)
        dtype_of(dtype, self.network.device)  # checks the name
        name = checkpoint_name(checkpoint)
        check_choice("projection", projection, (None, LATE_INTERACTION))
        if projection is not None:
            self.network = with_projection(self.network, packaged_projection(name))
        self.name = Path(name).resolve().name if Path(name).is_dir() else name
        self.name += f" ({projection})" if projection else ""
        transformer = cast(Transformer, self.network[0])
        limit = getattr(transformer.model.config, "max_position_embeddings", None)
        if limit is not None and max(max_passage_tokens, max_query_tokens) > limit:
            lengths = f"max_passage_tokens={max_passage_tokens} and max_query_tokens={max_query_tokens}"
            raise ValueError(f"{self.name!r} reads at most {limit} tokens: {lengths} must not be more")
        transformer.document_length = max_passage_tokens
        transformer.query_length = max_query_tokens
        if (expansion := transformer.query_expansion) is not None:
            # "fixed" would cut all queries at its length, whatever query_length is
            length = min(expansion["length"], max_query_tokens)
            transformer.query_expansion = expansion | {"strategy": "min", "length": length}

    def __repr__(self) -> str:
        return f"TokenEncoder({self.name!r})"

    @property
    def dimension(self) -> int:
        """Length d of a token vector."""
        dimension = self.network.get_embedding_dimension()
        if dimension is None:
            raise ValueError(f"{self!r} does not tell the length of its vectors")
        return dimension

    @cached_property
    def word_pieces(self) -> WordPieces:
        """The kinds of the tokenizer's word pieces."""
        return WordPieces.of(self.network.tokenizer)

    @property
    def empty(self) -> Tensor:
        """The token vectors of an empty text, shape (0, d)."""
        return next(self.network.parameters()).new_zeros(0, self.dimension)

    def encode_passages(self, texts: Sequence[str], *, verbose: bool = False) -> TokenStates:
        """Encodes passages or titles. An empty text has no token vectors."""
        return self._encode(self.network.encode_document, texts, verbose)

    def encode_queries(self, texts: Sequence[str], *, verbose: bool = False) -> TokenStates:
        """Encodes queries. An empty query is a ValueError."""
        if any(isinstance(text, str) and not text.strip() for text in texts):
            raise ValueError("a query is empty: there is nothing to rank by")
        return self._encode(self.network.encode_query, texts, verbose)

    def forward_passages(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_passages`, with gradients."""
        return self._forward(texts, "document")

    def forward_queries(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_queries`, with gradients."""
        return self._forward(texts, "query")

    def token_ids(self, texts: Sequence[str], *, query: bool = False) -> CSR:
        """The numbers of the word pieces that the token vectors of each text stand for; texts are not encoded."""
        rows = [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            filled = [text for text in part if text.strip()]
            rows += self._pieces(filled, "query" if query else "document") if filled else []
        lengths = np.zeros(len(texts), dtype=np.int64)
        lengths[[bool(text.strip()) for text in texts]] = [len(row) for row in rows[1:]]
        return CSR(offsets(lengths), np.concatenate(rows))

    def _pieces(self, texts: list[str], task: str) -> list[np.ndarray]:
        features = self.network.preprocess(texts, prompt=self.network.prompts.get(task), task=task)
        for module in self.network:  # only the module that leaves tokens out: no vectors are needed
            if isinstance(module, MultiVectorMask):
                features = module(features, task=task)
        masks = features["attention_mask"].bool()
        return [row[mask].numpy() for row, mask in zip(features["input_ids"], masks, strict=True)]

    def tokens(self, text: str, *, query: bool = False) -> list[str]:
        """The word pieces that the token vectors of a text stand for."""
        numbers = self.token_ids([text], query=query).indices
        return self.network.tokenizer.convert_ids_to_tokens(numbers.tolist())

    def _encode(self, encode: Callable[..., Any], texts: Sequence[str], verbose: bool) -> TokenStates:
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"{self!r} needs texts to encode, got {text!r}")
        distinct = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text.strip()))}
        encoded = []
        if distinct:
            with precision(self.dtype, self.network.device):
                encoded = encode(list(distinct), batch_size=self.batch_size, show_progress_bar=verbose)
        # clone: tensors made in inference mode cannot take part in training
        matrices = [matrix.clone().float() for matrix in encoded]
        return self._pack(texts, (matrices[distinct[text]] for text in texts if text.strip()))

    def _forward(self, texts: Sequence[str], task: str) -> TokenStates:
        filled = [text for text in texts if text.strip()]
        if not filled:
            return self._pack(texts, ())
        features = self.network.preprocess(filled, prompt=self.network.prompts.get(task), task=task)
        output = self.network(batch_to_device(features, self.empty.device), task=task)
        masks = output["attention_mask"].bool()
        return self._pack(texts, (m[mask].float() for m, mask in zip(output["token_embeddings"], masks, strict=True)))

    def _pack(self, texts: Sequence[str], matrices: Iterable[Tensor]) -> TokenStates:
        """Packs the matrices of the texts that are not empty, at unit length, which not every model gives them."""
        matrices = iter(matrices)
        states = TokenStates.pack([next(matrices) if text.strip() else self.empty for text in texts], self.empty)
        return states.with_values(functional.normalize(states.values, dim=-1))

    def reduced(self, texts: Sequence[str], dimension: int = 128) -> TokenEncoder:
        """This encoder with shorter token vectors, which need a fraction of the memory and time.

        Token vectors are projected onto their principal directions. The projection needs no training, but it can be
        trained like any other weight.

        Args:
            texts: A sample of passages; some hundreds are enough.
            dimension: The new length d of a token vector.

        Raises:
            ValueError: If the sample has fewer tokens than ``dimension``, or the vectors are not longer than that.
        """
        sample = self.encode_passages(texts).values
        if not 1 <= dimension < self.dimension or len(sample) < dimension:
            sizes = f"{self.dimension} dimensions to {dimension} by a sample of {len(sample)} tokens"
            raise ValueError(f"cannot reduce {sizes}")
        return self.projected(principal_directions(sample, dimension), f"{dimension} principal directions")

    def projected(self, projection: Tensor, name: str = "projected") -> TokenEncoder:
        """This encoder with token vectors that a matrix projects to another length.

        Args:
            projection: The matrix, shape (new length, d). It can be trained like any other weight.
            name: What the new encoder's name has in parentheses.

        Raises:
            ValueError: If the matrix has another shape.
        """
        if projection.ndim != 2 or projection.shape[1] != self.dimension:
            raise ValueError(f"projection must have shape (any, {self.dimension}), got {tuple(projection.shape)}")
        network = with_projection(self.network, projection)
        options = ("max_passage_tokens", "max_query_tokens", "batch_size", "device", "dtype")
        encoder = TokenEncoder(network, **{option: getattr(self, option) for option in options})
        encoder.name = f"{self.name} ({name})"
        return encoder

    def fingerprint(self) -> str:
        """SHA-256 over the weights and lengths, which tells whether stored vectors are of this encoder."""
        return weights_sha256(self.network, after=f"{self.max_passage_tokens} {self.max_query_tokens}")


def open_encoder(encoder: Any, device: str | None = None, dtype: DType = "auto") -> TokenEncoder:
    """Returns a :class:`TokenEncoder`, or makes one of what else a class may be given as ``encoder``."""
    if isinstance(encoder, TokenEncoder):
        return encoder
    check_type("encoder", encoder, (str, os.PathLike, MultiVectorEncoder), f"{EXPECTED}, or a TokenEncoder")
    return TokenEncoder(encoder, device=device, dtype=dtype)


def load_multi_vector_encoder(name: str, device: str | None = None) -> MultiVectorEncoder:
    """Loads a checkpoint as a ``MultiVectorEncoder``, without random weights.

    sentence-transformers would add a random projection to 128 dimensions to a checkpoint that has none, and the
    encoder would be of no use before training. So only the transformer of such a checkpoint is taken.
    """
    with loading(name):
        kind: Any = MultiVectorEncoder if _is_late_interaction(name) else SentenceTransformer
        network = kind(name, device=str(device_of(device)), model_kwargs=SAFE_WEIGHTS)
    if kind is MultiVectorEncoder:
        return network
    transformer = next((module for module in network if isinstance(module, Transformer)), None)
    if transformer is None:
        raise ValueError(f"{name!r} has no transformer, so it has no token vectors")
    bare = _multi_vector_encoder([transformer, MultiVectorMask()], network)
    bare.model_card_data.set_base_model(name)
    return bare


def with_projection(network: MultiVectorEncoder, projection: Tensor) -> MultiVectorEncoder:
    """An encoder with the same parts whose token vectors are projected by a matrix of shape (new length, d)."""
    head = Dense(
        projection.shape[1],
        len(projection),
        bias=False,
        activation_function=nn.Identity(),
        init_weight=projection,
        module_input_name="token_embeddings",
    )
    modules = [module for module in network if not isinstance(module, Normalize)]
    return _multi_vector_encoder([*modules, head], network)


def _multi_vector_encoder(modules: list[nn.Module], like: Any) -> MultiVectorEncoder:
    """An encoder of these modules that normalizes token vectors, with another encoder's prompts and device."""
    modules = [*modules, Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, prompts=like.prompts, device=str(like.device))


def _is_late_interaction(name: str) -> bool:
    """Whether the checkpoint is a late-interaction model, or has a projection that can be one of token vectors."""
    modules = [module["type"].rpartition(".")[2] for module in _read_json(name, "modules.json") or []]
    architectures = (_read_json(name, "config.json") or {}).get("architectures") or []
    if not {Dense.__name__, MultiVectorMask.__name__}.isdisjoint(modules):
        return True
    return any(architecture == "HF_ColBERT" or architecture.endswith("ForRetrieval") for architecture in architectures)


def _read_json(name: str, file: str) -> Any:
    path = load_file_path(name, file)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
