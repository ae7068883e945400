r"""The latent graph recurrent network: a cross-encoder whose word states are refined on a graph of query and document.

Of a pair with n words, for each chosen layer l of the encoder, with states of dimension d:

.. math::

    E_l &= \text{hidden state of layer } l \text{ of } [CLS]\, q\, [SEP]\, d\, [SEP] & (n, d) \quad \text{(Eq. 2)}

    A &= \operatorname{softmax}((E_l W_A) (E_l W_A)^T / \sqrt{d} + \epsilon (1 - M)) & (n, n) \quad \text{(Eq. 3)}

    M_{ij} &= \text{whether words } i \text{ and } j \text{ are linked} & (n, n) \quad \text{(Eq. 4, 5)}

    h_0 &= E_l & (n, d) \quad \text{(Eq. 6)}

    h_t &= \operatorname{GRU}([h_{t-1}, A h_{t-1}], h_{t-1}), \quad t = 1 \ldots T & (n, d) \quad \text{(Eq. 7)}

    h' &= \sigma(W_a h_T) \odot \tanh(W_h h_T) & (n, d) \quad \text{(Eq. 8)}

    h^G_l &= [\operatorname{mean}_i h'_i + \max_i h'_i, E_{l,[CLS]}] & (2 d) \quad \text{(Eq. 9)}

    s_l &= W_s h^G_l + b_s & (1) \quad \text{(Eq. 10)}

    f &= w_f [s_1 \ldots s_L] + b_f & (1) \quad \text{(Eq. 11)}

In Eq. 3, :math:`\epsilon` is the most negative number, so words that are not linked get weight 0.

"Eq. n" are the equations of Q. Dong, S. Niu: Latent graph recurrent network for document ranking. DASFAA 2021. "The
code" is the authors' release (github.com/Deriq-Qian-Dong/LGRe). Where they differ, Eq. 7 to 10 follow the code
(candidates of a gated graph network, both activations of Eq. 8, a mean over words, weights for each layer).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import pydantic
import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from pyterrier_graph.configuration import STRICT, DropoutRate

WordGraph = Literal["full", "bipartite", "bipartite+neighbor"]
Init = Literal["random", "identity"]


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LGReConfig:
    """Shape of an :class:`LGRe`. Defaults are the paper's, or the code's, but for ``layers`` and ``steps``.

    Attributes:
        word_graph: Which words are linked. ``'full'``: all. ``'bipartite'`` (Eq. 4): query words with document words.
            ``'bipartite+neighbor'`` (Eq. 5): also document words whose distance is at most ``radius``.
        radius: r of Eq. 5.
        layers: Hidden states that have a graph; 0 is the output of the encoder's embeddings, and negative numbers count
            from the end. None: all, as in the code (Eq. 11 begins with layer 1), which takes twice the time.
        steps: T (the code: 2; the paper does not state it). More ranked no better on our collections, and take longer.
        dropout: Dropout on adjacencies and on the vector of the graph (the code).
        init: ``'random'`` (the code), or ``'identity'``: see :class:`LGRe`. None takes ``'identity'`` if the encoder is
            a cross-encoder with one label, else ``'random'``.
        seed: Seed of the first weights above the encoder.
    """

    word_graph: WordGraph = "bipartite+neighbor"
    radius: NonNegativeInt = 1
    layers: tuple[int, ...] | None = (-1,)
    steps: NonNegativeInt = 1
    dropout: DropoutRate = 0.1
    init: Init | None = None
    seed: NonNegativeInt = 0

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The model of Dong and Niu 2021: a graph for all layers, T = 2, a random start; ``changes`` replace these."""
        published: dict[str, Any] = {"init": "random", "layers": None, "steps": 2}
        return cls(**published | changes)


@dataclass(frozen=True)
class LGReOutput:
    """The output of :class:`LGRe` for query-document pairs.

    Row i of ``adjacency`` holds the weights with which word i aggregates from each word; rows of padding have no
    meaning.
    """

    scores: Tensor  # f, shape (batch,)
    layer_scores: Tensor  # s_l, shape (batch, layers)
    # h_l^G, shape (batch, layers, 2 d): the vector of the graph, then the layer's [CLS]
    representations: Tensor
    states: Tensor  # E_L, the encoder's last hidden state, shape (batch, tokens, d)
    adjacency: Tensor | None  # A of Eq. 3, shape (batch, layers, tokens, tokens)


def word_graph(segments: Tensor, attention_mask: Tensor, config: LGReConfig) -> Tensor:
    """M of Eq. 4 or 5: whether two words are linked, booleans of shape (batch, tokens, tokens).

    For the arguments see :meth:`LGRe.forward`. Padding is never linked.
    """
    real = attention_mask.bool()
    allowed = real[:, :, None] & real[:, None, :]
    if config.word_graph == "full":
        return allowed
    query = segments == 0  # (batch, tokens)
    # the last [SEP] belongs to the document; [CLS] and the first [SEP] are linked to themselves only
    count = real.cumsum(1)
    is_last = count == count[:, -1:]
    is_document = (segments == 1) | is_last
    document = real & is_document  # (batch, tokens)
    links = query[:, :, None] & document[:, None, :]  # (batch, tokens, tokens)
    position = torch.arange(real.shape[1], device=real.device)
    distance = (position[:, None] - position).abs()  # (tokens, tokens)
    is_same = distance == 0
    links = links | links.mT | is_same
    if config.word_graph == "bipartite+neighbor":
        both = document[:, :, None] & document[:, None, :]
        is_near = distance <= config.radius
        neighbors = both & is_near
        links = links | neighbors
    return links & allowed


class LGRe(nn.Module):
    """Scores query-document pairs from word states that are refined on a word graph, layer by layer.

    With ``init='random'``, as in the authors' code, all weights above the encoder are random: a trained score is lost,
    and a few thousand pairs do not restore it. With ``init='identity'`` the score before training is a
    cross-encoder's: its logit is added to Eq. 11 (no other equation changes); W_s and b_s start at 0, and w_f at
    1 / layers.

    Args:
        encoder: Any Hugging Face encoder. ``init='identity'`` needs a model for sequence classification with one label,
            such as ``CrossEncoder(...).model`` of sentence-transformers; ``'random'`` uses the part below its head.
        config: Shape of the network above the encoder. The attribute ``config`` has its ``init`` resolved.

    Attributes:
        layers: Indices of the hidden states that have a graph, ascending, none negative.

    Raises:
        ValueError: If the encoder lacks such a layer, or has no logit to start from.
    """

    def __init__(self, encoder: PreTrainedModel, config: LGReConfig | None = None) -> None:
        super().__init__()
        config = config or LGReConfig()
        has_logit = encoder.base_model is not encoder and encoder.config.num_labels == 1
        init = config.init or ("identity" if has_logit else "random")
        if init == "identity" and not has_logit:
            kind = type(encoder).__name__
            raise ValueError(f"init='identity' needs a cross-encoder with one label, got a {kind}")
        self.config = replace(config, init=init)
        self.encoder: Any = encoder if init == "identity" else encoder.base_model
        hidden_states = range(encoder.config.num_hidden_layers + 1)
        chosen = hidden_states if config.layers is None else config.layers
        layers = [hidden_states[layer] for layer in chosen]  # without negative numbers
        self.layers = tuple(sorted(layers))
        size = encoder.config.hidden_size
        graphs = len(self.layers)
        projection = nn.Linear(size, size)
        weight = projection.weight.detach().mT
        bias = projection.bias.detach()
        self.projection = nn.Parameter(weight.repeat(graphs, 1, 1))  # W_A, (layers, d, d)
        self.projection_bias = nn.Parameter(bias.repeat(graphs, 1, 1))  # as in the code
        self.gates = nn.Linear(2 * size, 2 * size)  # of the GRU: update and reset
        self.candidate = nn.Linear(2 * size, size)
        self.attention = nn.Linear(size, 1)  # W_a
        self.features = nn.Linear(size, size)  # W_h
        score = nn.Linear(2 * size, 1)
        weight = score.weight.detach()
        bias = score.bias.detach()
        self.score = nn.Parameter(weight.repeat(graphs, 1))  # W_s, (layers, 2 d)
        self.score_bias = nn.Parameter(bias.repeat(graphs))  # b_s, (layers,)
        combination = nn.Linear(graphs, 1)
        self.combination = combination.weight  # w_f
        self.combination_bias = combination.bias  # b_f
        if init == "identity":
            for parameter in (self.score, self.score_bias, self.combination_bias):
                nn.init.zeros_(parameter)
            nn.init.constant_(self.combination, 1 / graphs)

    def forward(self, segments: Tensor, *, adjacency: bool = False, **inputs: Tensor) -> LGReOutput:
        """Scores pairs ``[CLS] query [SEP] document [SEP]``; all tensors have the shape (batch, tokens).

        Args:
            segments: 0 for the query's words, 1 for the document's, -1 for special tokens and padding.
            adjacency: Whether to return the word graphs, too.
            **inputs: The inputs of the encoder: ``input_ids, attention_mask`` and, for some, ``token_type_ids``.
        """
        encoded = self.encoder(**inputs, output_hidden_states=True)
        real = inputs["attention_mask"].bool()  # (batch, tokens)
        links = word_graph(segments, real, self.config)
        vectors = []
        graphs = []
        for number, layer in enumerate(self.layers):
            states = encoded.hidden_states[layer]  # E_l of Eq. 2: (batch, tokens, d)
            graph = self.adjacency(states, links, number)
            vectors.append(self.graph_vector(states, graph, real))
            if adjacency:
                graphs.append(graph)
        representations = torch.stack(vectors)  # (layers, batch, 2 d)
        # products and sums, because autocast would round the result of `linear`, and scores would tie
        products = representations * self.score[:, None]
        layer_scores = products.sum(-1) + self.score_bias[:, None]  # Eq. 10
        layer_scores = layer_scores.mT  # (batch, layers)
        products = layer_scores * self.combination
        scores = products.sum(-1) + self.combination_bias  # Eq. 11: (batch,)
        if self.config.init == "identity":
            scores = scores + encoded.logits[:, 0]
        return LGReOutput(
            scores=scores,
            layer_scores=layer_scores,
            representations=representations.transpose(0, 1),
            states=encoded.hidden_states[-1],
            adjacency=torch.stack(graphs, 1) if adjacency else None,
        )

    @property
    def base_model(self) -> PreTrainedModel:
        """The encoder below the word graphs and, with ``init='identity'``, below the cross-encoder's head."""
        return self.encoder.base_model

    def adjacency(self, states: Tensor, links: Tensor, number: int) -> Tensor:
        """Eq. 3 of one of the :attr:`layers`, by its place among them: A, shape (batch, tokens, tokens).

        ``states`` are E_l, shape (batch, tokens, d), and ``links`` are M, shape (batch, tokens, tokens).
        """
        projected = states @ self.projection[number] + self.projection_bias[number]
        # scaled before the product, which float16 might not hold
        scale = states.shape[-1] ** -0.25
        projected = projected * scale
        scores = projected @ projected.mT  # (batch, tokens, tokens)
        smallest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill_(~links, smallest)
        return scores.softmax(-1)

    def graph_vector(self, states: Tensor, adjacency: Tensor, real: Tensor) -> Tensor:
        """Eq. 6 to 9: h_l^G of each pair, shape (batch, 2 d)."""
        rate = self.config.dropout
        adjacency = functional.dropout(adjacency, rate, self.training)
        refined = self.propagate(states, adjacency)  # (batch, tokens, d)
        vector = self.read_out(refined, real)  # (batch, d)
        vector = functional.dropout(vector, rate, self.training)
        return torch.cat([vector, states[:, 0]], -1)  # Eq. 9

    def propagate(self, states: Tensor, adjacency: Tensor) -> Tensor:
        """Eq. 6 and 7: h_T, in the shape of E_l."""
        for _ in range(self.config.steps):  # Eq. 7
            neighbors = adjacency @ states  # A h_{t-1}, (batch, tokens, d)
            inputs = torch.cat([states, neighbors], -1)  # (batch, tokens, 2 d)
            gates = self.gates(inputs).sigmoid()
            update, reset = gates.chunk(2, -1)  # (batch, tokens, d) each
            remembered = reset * states
            inputs = torch.cat([remembered, neighbors], -1)
            candidate = self.candidate(inputs).tanh()
            states = states + update * (candidate - states)
        return states

    def read_out(self, states: Tensor, real: Tensor) -> Tensor:
        """Eq. 8 and the first half of Eq. 9: one vector of h_T per pair, shape (batch, d)."""
        attention = self.attention(states).sigmoid()  # (batch, tokens, 1)
        features = self.features(states).tanh()
        words = attention * features  # Eq. 8: (batch, tokens, d)
        share = real[:, None].to(words.dtype)  # (batch, 1, tokens)
        share = share / share.sum(-1, keepdim=True)
        mean = (share @ words).squeeze(-2)  # (batch, d)
        padding = ~real[..., None]  # (batch, tokens, 1)
        smallest = torch.finfo(words.dtype).min
        maximum = words.masked_fill(padding, smallest).amax(-2)  # (batch, d)
        return mean + maximum
