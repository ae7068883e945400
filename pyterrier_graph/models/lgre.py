"""The latent graph recurrent network: a cross-encoder whose word states are refined on a graph of query and document.

Q. Dong, S. Niu: Latent graph recurrent network for document ranking. DASFAA 2021. "Eq. n" below are that paper's.
"The code" is its authors' release (github.com/Deriq-Qian-Dong/LGRe); where both differ there is an option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

WordGraph = Literal["full", "bipartite", "bipartite+neighbor"]
SpecialTokens = Literal["alone", "sides"]
SelfLoops = Literal["all", "printed"]
Gate = Literal["ggnn", "gru"]
Readout = Literal["gated", "linear"]
Pooling = Literal["mean", "sum"]
Init = Literal["random", "identity"]


@dataclass(frozen=True)
class LGReConfig:
    """Shape of an :class:`LGRe`. The defaults are the paper's where it is clear and can be trained, else the code's.

    Attributes:
        word_graph: Which words are linked: ``'full'``; ``'bipartite'`` (Eq. 4), query words with document words; or
            ``'bipartite+neighbor'`` (Eq. 5), which adds document words near each other.
        radius: r, how far apart they may be.
        special_tokens: ``'alone'``: no side has [CLS] and the first [SEP]; the last [SEP] is the document's (the
            indices of Eq. 4 and 5). ``'sides'``: [CLS] is the query's, every [SEP] the document's (the code).
        self_loops: ``'all'``: every word is linked to itself (Eq. 4, the code). ``'printed'``: in
            ``'bipartite+neighbor'`` those outside the document are not (Eq. 5 for i <= m + 1). A row without any link
            is then not masked at all, for Eq. 3 adds the same number to all of it.
        layers: Hidden states that have a graph; 0 is the encoder's embedding output and negative ones count from the
            end, so that ``(-1,)`` is the last layer. None takes all, as the code does; Eq. 11 leaves 0 out.
        per_layer: Whether each layer has a W_A, W_s and b_s of its own (the code) or all share one (Eq. 3 and 10 as
            printed, where these have no index l).
        steps: T (the code: 2; the paper does not say).
        gate: Eq. 7. ``'ggnn'``: [h, Ah] makes the gates, and [r * h, Ah] the candidate (the code). ``'gru'``: a
            PyTorch GRU cell with input [h, Ah] and state h (the text, word by word).
        readout: Eq. 8. ``'gated'``: sigmoid(w_a h) * tanh(W_h h) (the code). ``'linear'``: without both (as printed).
        pooling: What is added to the maximum in Eq. 9: the ``'mean'`` over words (the code) or the ``'sum'``
            (as printed).
        dropout: On adjacencies and on what is read out of the graph (the code).
        init: ``'random'`` as in the code, or ``'identity'``: see :class:`LGRe`.
    """

    word_graph: WordGraph = "bipartite+neighbor"
    radius: int = 1
    special_tokens: SpecialTokens = "alone"
    self_loops: SelfLoops = "all"
    layers: tuple[int, ...] | None = None
    per_layer: bool = True
    steps: int = 2
    gate: Gate = "ggnn"
    readout: Readout = "gated"
    pooling: Pooling = "mean"
    dropout: float = 0.1
    init: Init = "random"

    def __post_init__(self) -> None:
        choices = {
            "word_graph": WordGraph,
            "special_tokens": SpecialTokens,
            "self_loops": SelfLoops,
            "gate": Gate,
            "readout": Readout,
            "pooling": Pooling,
            "init": Init,
        }
        for name, values in choices.items():
            if getattr(self, name) not in get_args(values):
                raise ValueError(f"{name} must be one of {get_args(values)}, got {getattr(self, name)!r}")
        if self.radius < 0 or self.steps < 0:
            raise ValueError(f"radius and steps must not be negative, got {self.radius} and {self.steps}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))

    def chosen_layers(self, hidden_states: int) -> tuple[int, ...]:
        """Indices of the layers among so many hidden states, counted from 0.

        Raises:
            ValueError: If there are none, or one is out of range or named twice.
        """
        if self.layers is None:
            return tuple(range(hidden_states))
        chosen = tuple(layer + hidden_states if layer < 0 else layer for layer in self.layers)
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(hidden_states)):
            raise ValueError(f"layers must be distinct hidden states, 0 to {hidden_states - 1}, got {self.layers}")
        return chosen


@dataclass(frozen=True)
class LGReOutput:
    """What :class:`LGRe` computes of query-document pairs.

    Attributes:
        scores: f, shape (batch,).
        layer_scores: s_l, shape (batch, layers).
        representations: h_l^G, shape (batch, layers, 2 d): the graph, then the layer's [CLS].
        states: E_L, the encoder's last hidden state, shape (batch, tokens, d).
        adjacency: The masked word graphs of Eq. 3, shape (batch, layers, tokens, tokens), if asked for: row i says how
            much word i hears from each word. Rows of padding mean nothing.
    """

    scores: Tensor
    layer_scores: Tensor
    representations: Tensor
    states: Tensor
    adjacency: Tensor | None


def word_graph(segments: Tensor, attention_mask: Tensor, config: LGReConfig) -> Tensor:
    """M of Eq. 4 or 5: whether words are linked; padding never is.

    Args:
        segments: As for :meth:`LGRe.forward`.
        attention_mask: Likewise.
        config: Says which graph.

    Returns:
        Booleans, shape (batch, tokens, tokens), symmetric but for rows that :attr:`LGReConfig.self_loops` leaves alone.
    """
    real = attention_mask.bool()
    among = real[:, :, None] & real[:, None, :]
    if config.word_graph == "full":
        return among
    query, document = (segments == 0) & real, (segments == 1) & real
    count = real.cumsum(1)
    first, last = real & (count == 1), real & (count == count[:, -1:])
    special = real & ~query & ~document
    if config.special_tokens == "alone":
        document = document | special & last
    else:
        behind_query = query.cumsum(1) == query.sum(1, keepdim=True)
        document = document | special & behind_query & ~first
        query = real & ~document
    links = query[:, :, None] & document[:, None, :]
    links = links | links.mT
    position = torch.arange(real.shape[1], device=real.device)
    apart = (position[:, None] - position).abs()
    if config.word_graph == "bipartite" or config.self_loops == "all":
        links = links | (apart == 0)
    if config.word_graph == "bipartite+neighbor":
        links = links | (apart <= config.radius) & document[:, :, None] & document[:, None, :]
    links = links & among
    return links | among & ~links.any(-1, keepdim=True)


class LGRe(nn.Module):
    """Scores query-document pairs from word states that are refined on a word graph, layer by layer.

    ``init='random'`` is the authors': whatever the encoder was trained for, its score is lost, and a few thousand pairs
    cannot bring it back. ``init='identity'`` therefore starts at a cross-encoder: its logit is added to Eq. 11 (the one
    difference in form), and W_s and b_s start at 0, w_f at 1 / layers. The untrained score *is* the cross-encoder's.

    Args:
        encoder: Any Hugging Face encoder. ``init='identity'`` needs a model for sequence classification with one label,
            such as ``CrossEncoder(...).model`` of sentence-transformers; ``'random'`` uses the part below its head.
        config: Shape of what is on top.

    Attributes:
        layers: Indices of the hidden states that have a graph, none negative.

    Raises:
        ValueError: If the encoder lacks such a layer, or has no logit to start from.
    """

    def __init__(self, encoder: PreTrainedModel, config: LGReConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LGReConfig()
        identity = config.init == "identity"
        if identity and (encoder.base_model is encoder or encoder.config.num_labels != 1):
            raise ValueError(
                "init='identity' needs a cross-encoder, that is a model for sequence classification with one label, "
                f"got {type(encoder).__name__} with {encoder.config.num_labels} labels"
            )
        self.encoder = encoder if identity else cast(PreTrainedModel, encoder.base_model)
        self.checkpointing = False
        self.layers = config.chosen_layers(encoder.config.num_hidden_layers + 1)
        size, own = encoder.config.hidden_size, len(self.layers) if config.per_layer else 1
        start = nn.Linear(size, size)
        self.projection = nn.Parameter(start.weight.detach().mT.repeat(own, 1, 1))  # W_A, and a bias as in the code
        self.projection_bias = nn.Parameter(start.bias.detach().repeat(own, 1, 1))
        if config.gate == "gru":
            self.cell = nn.GRUCell(2 * size, size)
        else:
            self.gates, self.candidate = nn.Linear(2 * size, 2 * size), nn.Linear(2 * size, size)
        self.attention, self.features = nn.Linear(size, 1), nn.Linear(size, size)  # W_a, W_h
        score = nn.Linear(2 * size, 1)
        self.score = nn.Parameter(score.weight.detach().repeat(own, 1))  # W_s
        self.score_bias = nn.Parameter(score.bias.detach().repeat(own))
        combination = nn.Linear(len(self.layers), 1)
        self.combination, self.combination_bias = combination.weight, combination.bias  # w_f, b_f
        if identity:
            for parameter in (self.score, self.score_bias, self.combination_bias):
                nn.init.zeros_(parameter)
            nn.init.constant_(self.combination, 1 / len(self.layers))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        segments: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        adjacency: bool = False,
    ) -> LGReOutput:
        """Scores pairs, ``[CLS] query [SEP] document [SEP]`` or as the encoder's tokenizer has it.

        Args:
            input_ids: Token numbers, shape (batch, tokens).
            attention_mask: 1 for tokens, 0 for padding; likewise.
            segments: 0 for the query's words, 1 for the document's, -1 for special tokens and padding; likewise. This
                is ``BatchEncoding.sequence_ids`` of a fast tokenizer, with -1 for None.
            token_type_ids: For encoders that have some; likewise.
            adjacency: Whether to return the word graphs.

        Returns:
            Scores and what they are made of.
        """
        inputs: dict[str, Any] = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, return_dict=True, **inputs
        )
        links = word_graph(segments, attention_mask, self.config)
        # A CPU has nothing to gain from larger products, and much to lose from states that its cache does not hold.
        at_once = 1 if links.device.type == "cpu" else len(self.layers)
        real = attention_mask.bool()
        vectors, graphs = [], []
        for start in range(0, len(self.layers), at_once):
            part = slice(start, start + at_once)
            states = torch.stack([encoded.hidden_states[layer] for layer in self.layers[part]])  # E_l of Eq. 2
            if self.training and self.checkpointing:
                vector, graph = checkpoint(self.represent, states, links, real, part, use_reentrant=False)
            else:
                vector, graph = self.represent(states, links, real, part)
            vectors.append(vector)
            if adjacency:
                graphs.append(graph)
        representations = torch.cat(vectors)
        # products and sums rather than `linear`, which autocast would round: ranking needs all the digits
        layer_scores = (representations * self.score[:, None]).sum(-1) + self.score_bias[:, None]  # Eq. 10
        scores = (layer_scores.mT * self.combination).sum(-1) + self.combination_bias  # Eq. 11
        if self.config.init == "identity":
            scores = scores + encoded.logits[:, 0]
        return LGReOutput(
            scores,
            layer_scores.mT,
            representations.transpose(0, 1),
            encoded.hidden_states[-1],
            torch.cat(graphs).transpose(0, 1) if adjacency else None,
        )

    def gradient_checkpointing_enable(self, **arguments: Any) -> None:
        """Has training compute encoder layers and graphs twice instead of keeping them, as ``Trainer`` asks for."""
        self.encoder.gradient_checkpointing_enable(**arguments)
        self.checkpointing = True

    def represent(self, states: Tensor, links: Tensor, real: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Eq. 3 and 6 to 9, for several layers at once.

        Args:
            states: E, shape (layers, batch, tokens, d).
            links: M, shape (batch, tokens, tokens).
            real: Which tokens are no padding, shape (batch, tokens).
            part: Which of :attr:`layers` they are.

        Returns:
            h^G, shape (layers, batch, 2 d), and the word graphs, shape (layers, batch, tokens, tokens).
        """
        graph = self.adjacency(states, links, part)
        refined = self.propagate(states, functional.dropout(graph, self.config.dropout, self.training))
        read = functional.dropout(self.read_out(refined, real), self.config.dropout, self.training)
        return torch.cat([read, states[:, :, 0]], -1), graph  # Eq. 9

    def adjacency(self, states: Tensor, links: Tensor, part: slice) -> Tensor:
        """Eq. 3; arguments as in :meth:`represent`."""
        weight, bias = (p.expand(len(self.layers), -1, -1)[part] for p in (self.projection, self.projection_bias))
        projected = torch.baddbmm(bias, states.flatten(1, 2), weight).view_as(states)
        projected = projected * states.shape[-1] ** -0.25  # before the product, which float16 might not hold
        scores = projected @ projected.mT
        return scores.masked_fill_(~links, torch.finfo(scores.dtype).min).softmax(-1)

    def propagate(self, states: Tensor, adjacency: Tensor) -> Tensor:
        """Eq. 6 and 7: h_T, of the shape of E."""
        for _ in range(self.config.steps):
            neighbors = adjacency @ states
            inputs = torch.cat([states, neighbors], -1)
            if self.config.gate == "gru":
                states = self.cell(inputs.flatten(0, -2), states.flatten(0, -2)).view_as(states)
            else:
                update, reset = self.gates(inputs).sigmoid().chunk(2, -1)
                candidate = self.candidate(torch.cat([reset * states, neighbors], -1)).tanh()
                states = states + update * (candidate - states)
        return states

    def read_out(self, states: Tensor, real: Tensor) -> Tensor:
        """Eq. 8 and the first half of Eq. 9: one vector of h_T per graph, shape (layers, batch, d)."""
        attention, features = self.attention(states), self.features(states)
        if self.config.readout == "gated":
            attention, features = attention.sigmoid(), features.tanh()
        words = attention * features  # Eq. 8
        share = real[:, None].to(words.dtype)
        if self.config.pooling == "mean":
            share = share / share.sum(-1, keepdim=True).clamp(min=1)
        largest = words.masked_fill(~real[..., None], torch.finfo(words.dtype).min).amax(-2)
        return (share @ words).squeeze(-2) + largest * real.any(-1)[:, None]
