"""The token-level text encoder, a sentence-transformers ``MultiVectorEncoder``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import batch_to_device, load_file_path
from torch import Tensor, nn
from torch.nn import functional

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.encoders.checkpoints import checkpoint_name
from pyterrier_graph.encoders.token_states import TokenStates


class TokenEncoder:
    """Encodes texts into one unit vector per token, as ColBERT does (paper: Sect. 4.2, "Encoder").

    Args:
        model: A ``MultiVectorEncoder``, whose lengths are then set to these, or the name or folder of a checkpoint: a
            late-interaction model (Stanford ColBERT, PyLate, sentence-transformers), a ``SentenceTransformer`` or any
            Hugging Face encoder. The last two have no token-level projection, and none is invented: their hidden states
            are used as they are.
        max_passage_tokens: Passages are cut after so many word pieces (the paper: 180).
        max_query_tokens: Queries likewise (the paper: 120).
        batch_size: Texts per forward pass.
        device: As torch names it; by default a GPU where there is one.

    Raises:
        ValueError: If a text is missing, or a length is not positive or more than the model can read.
    """

    def __init__(
        self,
        model: str | MultiVectorEncoder,
        *,
        max_passage_tokens: int = 180,
        max_query_tokens: int = 120,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        if min(max_passage_tokens, max_query_tokens, batch_size) < 1:
            raise ValueError("max_passage_tokens, max_query_tokens and batch_size must be positive")
        self.model = model
        self.max_passage_tokens = max_passage_tokens
        self.max_query_tokens = max_query_tokens
        self.batch_size = batch_size
        self.device = device
        base = model if isinstance(model, str) else model.model_card_data.base_model or type(model).__name__
        self.name = checkpoint_name(str(base))
        self.network = load_multi_vector_encoder(model, device) if isinstance(model, str) else model
        if device is not None:
            self.network.to(device)
        transformer = cast(Transformer, self.network[0])
        limit = getattr(transformer.model.config, "max_position_embeddings", None)
        if limit is not None and max(max_passage_tokens, max_query_tokens) > limit:
            raise ValueError(
                f"{self.name!r} reads at most {limit} tokens: max_passage_tokens={max_passage_tokens} "
                f"and max_query_tokens={max_query_tokens} must not be more"
            )
        transformer.document_length = max_passage_tokens
        transformer.query_length = max_query_tokens

    def __repr__(self) -> str:
        return f"TokenEncoder({self.name!r})"

    @property
    def dimension(self) -> int:
        """Length d of a token vector."""
        dimension = self.network.get_embedding_dimension()
        if dimension is None:
            raise ValueError(f"{self!r} does not tell the length of its vectors")
        return dimension

    @property
    def nothing(self) -> Tensor:
        """The token vectors of an empty text, shape (0, d)."""
        return next(self.network.parameters()).new_zeros(0, self.dimension)

    def encode_passages(self, texts: Sequence[str], *, verbose: bool = False) -> TokenStates:
        """Encodes passages or titles. An empty text has no tokens: a section without a title says nothing."""
        return self._encode(self.network.encode_document, texts, verbose)

    def encode_queries(self, texts: Sequence[str], *, verbose: bool = False) -> TokenStates:
        """Encodes queries; an empty one is a ValueError."""
        if any(isinstance(text, str) and not text.strip() for text in texts):
            raise ValueError("a query is empty: there is nothing to rank by")
        return self._encode(self.network.encode_query, texts, verbose)

    def forward_passages(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_passages`, with gradients."""
        return self._forward(texts, "document")

    def forward_queries(self, texts: Sequence[str]) -> TokenStates:
        """As :meth:`encode_queries`, with gradients."""
        return self._forward(texts, "query")

    def _forward(self, texts: Sequence[str], task: str) -> TokenStates:
        filled = [text for text in texts if text.strip()]
        if not filled:
            return self._pack(texts, iter(()))
        features = self.network.preprocess(filled, prompt=self.network.prompts.get(task), task=task)
        output = self.network(batch_to_device(features, self.nothing.device), task=task)
        masks = output["attention_mask"].bool()
        return self._pack(texts, (m[mask] for m, mask in zip(output["token_embeddings"], masks, strict=True)))

    def _pack(self, texts: Sequence[str], matrices: Iterator[Tensor]) -> TokenStates:
        """Packs the matrices of the texts that are not empty, at unit length, which not every model gives them."""
        states = TokenStates.pack([next(matrices) if text.strip() else self.nothing for text in texts], self.nothing)
        return states.with_values(functional.normalize(states.values, dim=-1))

    def tokens(self, text: str, *, query: bool = False) -> list[str]:
        """The word pieces that the rows of an encoded text stand for."""
        task = "query" if query else "document"
        prompt = self.network.prompts.get(task)
        with torch.inference_mode():
            output = self.network.encode(text, prompt=prompt or "", task=task, output_value=None)
        identifiers = output["input_ids"][output["attention_mask"].bool()]
        return self.network.tokenizer.convert_ids_to_tokens(identifiers.tolist())

    def _encode(self, encode: Any, texts: Sequence[str], verbose: bool) -> TokenStates:
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"{self!r} needs texts to encode, got {text!r}")
        distinct = {text: place for place, text in enumerate(dict.fromkeys(text for text in texts if text.strip()))}
        encoded = encode(list(distinct), batch_size=self.batch_size, show_progress_bar=verbose) if distinct else []
        # clone: tensors made in inference mode cannot take part in training
        matrices = [matrix.clone() for matrix in encoded]
        return self._pack(texts, (matrices[distinct[text]] for text in texts if text.strip()))

    def reduced(self, texts: Sequence[str], dimension: int = 128) -> TokenEncoder:
        """This encoder with shorter token vectors, at a fraction of the memory and time.

        A projection onto the principal directions of token vectors is put behind the encoder (not centred, so that
        cosines stay what they are as far as possible). It needs no training, unlike the random projection
        that late-interaction models start with, and can be trained on like any other weight.

        Args:
            texts: A sample of passages, some hundreds.
            dimension: The new length d of a token vector.

        Raises:
            ValueError: If the sample has fewer tokens than that, or the vectors are not longer already.
        """
        sample = self.encode_passages(texts).values
        if not 1 <= dimension < self.dimension or len(sample) < dimension:
            raise ValueError(
                f"cannot reduce {self.dimension} dimensions to {dimension} by a sample of {len(sample)} tokens"
            )
        directions = torch.linalg.svd(sample, full_matrices=False).Vh[:dimension].clone()
        projection = Dense(
            self.dimension,
            dimension,
            bias=False,
            activation_function=nn.Identity(),
            init_weight=directions,
            module_input_name="token_embeddings",
            module_output_name="token_embeddings",
        )
        modules = [module for module in self.network if not isinstance(module, Normalize)]
        network = MultiVectorEncoder(
            modules=[*modules, projection, Normalize(module_input_name="token_embeddings")],
            prompts=self.network.prompts,  # type: ignore[arg-type]
            device=str(sample.device),
        )
        encoder = TokenEncoder(
            network,
            max_passage_tokens=self.max_passage_tokens,
            max_query_tokens=self.max_query_tokens,
            batch_size=self.batch_size,
            device=self.device,
        )
        encoder.name = f"{self.name} ({dimension} principal directions)"
        return encoder

    def fingerprint(self) -> str:
        """SHA-256 over the weights: tells whether stored vectors are this encoder's."""
        return weights_sha256(self.network, after=f"{self.max_passage_tokens} {self.max_query_tokens}")


def load_multi_vector_encoder(name: str, device: str | None = None) -> MultiVectorEncoder:
    """Loads a checkpoint as a ``MultiVectorEncoder``, without adding random weights.

    sentence-transformers appends a randomly initialized 128-dimensional projection to checkpoints that have none;
    it is taken off again, since it would have to be trained before the encoder is of use.
    """
    network = MultiVectorEncoder(name, device=device, model_kwargs={"dtype": torch.float32})
    if _has_projection(name) or not any(isinstance(module, Dense) for module in network):
        return network
    transformer = next(module for module in network if isinstance(module, Transformer))
    bare = MultiVectorEncoder(
        modules=[transformer, MultiVectorMask(), Normalize(module_input_name="token_embeddings")],
        prompts=network.prompts,  # type: ignore[arg-type]
        device=device,
    )
    bare.model_card_data.set_base_model(name)
    return bare


def _has_projection(name: str) -> bool:
    """Whether the checkpoint itself has a token-level projection."""
    modules = _read_json(name, "modules.json") or []
    if any(module["type"].rpartition(".")[2] == Dense.__name__ for module in modules):
        return True
    architectures = (_read_json(name, "config.json") or {}).get("architectures") or []
    return any(a == "HF_ColBERT" or a.endswith("ForRetrieval") for a in architectures)


def _read_json(name: str, file: str) -> Any:
    path = load_file_path(name, file)
    if path is None:
        return None
    with open(path, encoding="utf-8") as lines:
        return json.load(lines)
