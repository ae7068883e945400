"""Projections of a frozen encoder's token vectors, which are trained by MaxSim."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import pyterrier_graph as ptg
from experiments.harness.passage_corpus import PassageCorpus
from pyterrier_graph.encoders.token_states import TokenStates
from pyterrier_graph.encoders.token_weights import Frequencies, passage_frequencies
from pyterrier_graph.models.maxsim import normalized, token_maxima
from pyterrier_graph.training.options import TrainerOptions
from pyterrier_graph.training.trainer import train
from pyterrier_graph.training.validation import RunEvaluator, documents_of

BATCH = 24  # queries, each with a relevant passage and two others
HARD = 30  # first passages of BM25 that one of the two is drawn from; the other is of the same document
MEASURE = "nDCG@10"
PATIENCE = 2


class Example(NamedTuple):
    """A training query by its number, and passages by their nodes."""

    query: int
    relevant: int
    others: tuple[int, ...]

    @property
    def passages(self) -> tuple[int, ...]:
        """The relevant passage, then the others."""
        return self.relevant, *self.others


class Projected:
    """The queries and passages of a corpus as token vectors of a frozen encoder, for any projection of them.

    Args:
        corpus: The corpus.
        encoder: The encoder.
        name: The encoder's name in the names of files.
    """

    def __init__(self, corpus: PassageCorpus, encoder: ptg.TokenEncoder, name: str = "tokens") -> None:
        self.corpus, self.encoder, self.name = corpus, encoder, name
        self.store = corpus.tokens(encoder, name)
        self._queries: dict[str, TokenStates] = {}

    @cached_property
    def frequencies(self) -> Frequencies:
        """In how many passages each word piece is."""
        return passage_frequencies(self.corpus.graph, self.encoder, self.store.ids, verbose=False)

    def queries(self, split: str) -> TokenStates:
        """Token vectors of the queries of a split, in their order."""
        if split not in self._queries:
            file = self.corpus.folder / f"{self.name}-{split}.npz"
            if not file.exists():
                states = self.encoder.encode_queries(self.corpus.queries[split].topics["query"].tolist())
                np.savez(file, values=states.values.half().numpy(), offsets=states.offsets.numpy())
            with np.load(file) as arrays:
                values = torch.from_numpy(arrays["values"]).float()
                self._queries[split] = TokenStates(values, torch.from_numpy(arrays["offsets"]))
        return self._queries[split]

    def rerank(self, split: str, projection: Tensor | None, *, idf: bool = False) -> pd.DataFrame:
        """The candidates of a split by MaxSim of projected token vectors; of the encoder's own without a projection.

        Args:
            split: The split.
            projection: Shape (dimension, d).
            idf: Whether there is a column ``idf``, with the scores where query tokens are weighted by their inverse
                document frequency.
        """
        topics, run = self.corpus.queries[split].topics, self.corpus.candidates[split].reset_index(drop=True)
        nodes = self.corpus.graph.nodes_of(run["docno"].tolist())
        scores = np.zeros((2, len(run)))
        queries = project(self.queries(split), projection)
        number_of = {qid: number for number, qid in enumerate(topics["qid"])}
        for qid, rows in run.groupby("qid").indices.items():
            number = number_of[qid]
            maxima = token_maxima(queries[number], project(self.store.states(nodes[rows]), projection)).numpy()
            scores[0, rows] = maxima.sum(1)
            if idf:
                ids = self.encoder.token_ids([topics["query"].iloc[number]], query=True).indices
                scores[1, rows] = maxima @ self.frequencies.idf(ids, self.encoder.word_pieces.wordless)
        run = run.drop(columns=["score", "rank"]).assign(score=scores[0])
        return pt.model.add_ranks(run.assign(idf=scores[1]) if idf else run)

    def batch(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Token vectors of queries and of their passages, and which of them belong to other queries as well."""
        passages = [node for one in examples for node in one.passages]
        queries = padded(self.queries("train").select(torch.tensor([one.query for one in examples])))
        names = ("queries", "query_tokens", "passages", "passage_tokens")
        matrices = [*queries, *padded(self.store.states(np.array(passages)))]
        return dict(zip(names, matrices, strict=True)) | {"ignored": ignored(self.corpus, examples, passages)}


class Batches(Dataset):
    """Batches of training examples, each of one corpus; they are drawn anew in each epoch.

    Args:
        corpora: The corpora; a batch has the number of its corpus.
        seed: Of examples and their order.
        single: Whether an example keeps one of its two other passages, drawn at random.
    """

    def __init__(self, corpora: Sequence[PassageCorpus], seed: int, *, single: bool = False) -> None:
        self.corpora, self.seed, self.single = corpora, seed, single
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Draws the batches of an epoch."""
        drawn = np.random.default_rng((self.seed, epoch))
        self.batches: list[tuple[int, list[Example]]] = []
        for number, corpus in enumerate(self.corpora):
            examples = examples_of(corpus, drawn)
            examples = [examples[place] for place in drawn.permutation(len(examples))]
            if self.single:
                examples = [one._replace(others=(int(drawn.choice(one.others)),)) for one in examples]
            starts = range(0, len(examples) - BATCH + 1, BATCH)
            self.batches += [(number, examples[start : start + BATCH]) for start in starts]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> tuple[int, list[Example]]:
        return self.batches[number]


class ProjectionLoss(nn.Module):
    """A projection with the loss that it is trained by: cross-entropy of MaxSim over the passages of a batch.

    Args:
        start: The projection to begin with, shape (dimension, d).
        scale: Factor of the scores.
    """

    def __init__(self, start: Tensor, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.clone())
        self.scale = scale

    def forward(
        self, queries: Tensor, query_tokens: Tensor, passages: Tensor, passage_tokens: Tensor, ignored: Tensor
    ) -> dict[str, Tensor]:
        """The loss of a batch."""
        queries, passages = (functional.normalize(part @ self.weight.T, dim=-1) for part in (queries, passages))
        return {"loss": maxsim_loss(queries, query_tokens, passages, passage_tokens, ignored, self.scale)}


def maxsim_loss(
    queries: Tensor, query_tokens: Tensor, passages: Tensor, passage_tokens: Tensor, ignored: Tensor, scale: float
) -> Tensor:
    """Cross-entropy of MaxSim over the passages of a batch; the first passage of each query is the relevant one.

    Scores are divided by the square root of the query's length, so that long queries do not count for more.
    """
    each = len(queries), len(passages) // len(queries)
    masks = {"queries_mask": query_tokens, "documents_mask": passage_tokens.unflatten(0, each)}
    scores = colbert_scores(queries, passages.unflatten(0, each), **masks)
    scores = scale * scores / query_tokens.sum(1, keepdim=True).sqrt()
    labels = torch.arange(each[0]) * each[1]
    return functional.cross_entropy(scores.masked_fill(ignored, -torch.inf), labels)


def train_projection(
    parts: Sequence[Projected], start: Tensor, options: argparse.Namespace, seed: int, checkpoints: Path
) -> Tensor:
    """A projection that is trained on the training queries of some corpora, and best on their validation queries.

    Args:
        parts: The corpora.
        start: The projection to begin with.
        options: ``epochs``, ``learning_rate`` and ``scale``.
        seed: Of examples and their order.
        checkpoints: Folder for an interrupted training that continues.
    """
    model = ProjectionLoss(start, options.scale)
    evaluators = [RunEvaluator(MEASURE, part.corpus.queries["dev"].qrels) for part in parts]

    def validate() -> float:
        with torch.inference_mode():
            weight = model.weight.detach()
            runs = [part.rerank("dev", weight) for part in parts]
        return float(np.mean([evaluate(run) for evaluate, run in zip(evaluators, runs, strict=True)]))

    settings = TrainerOptions(
        epochs=options.epochs,
        batch_size=1,
        learning_rate=options.learning_rate,
        measure=MEASURE,
        patience=PATIENCE,
        output_dir=str(checkpoints),
        seed=seed,
    )
    train(
        model,
        Batches([part.corpus for part in parts], seed),
        lambda one: parts[one[0][0]].batch(one[0][1]),
        settings,
        rates=[([model.weight], options.learning_rate)],
        validate=validate,
        identity={"corpora": [part.corpus.name for part in parts], "scale": options.scale},
        device=torch.device("cpu"),
        dtype="float32",
        verbose=True,
    )
    return model.weight.detach()


def examples_of(corpus: PassageCorpus, drawn: np.random.Generator) -> list[Example]:
    """Each training query with a passage of the highest grade, one of the same document, and one of BM25.

    Where all passages of the document are relevant, both of the others are of BM25.
    """
    train, graph, found = corpus.queries["train"], corpus.graph, corpus.candidates["train"]
    hard = found[found["rank"] < HARD].groupby("qid")["docno"].apply(list)
    judged = train.qrels[train.qrels["label"] > 0].groupby("qid")
    examples = []
    for number, qid in enumerate(train.topics["qid"]):
        if qid not in judged.groups or qid not in hard.index:
            continue
        relevant = judged.get_group(qid)
        nodes = graph.nodes_of(relevant["docno"].tolist())
        best = drawn.choice(np.flatnonzero(relevant["label"] == relevant["label"].max()))
        document = graph.document_of(documents_of(relevant["docno"].iloc[[best]]).tolist())
        page = np.setdiff1d(graph.passages_of_documents(document)[1], nodes)
        wrong = np.setdiff1d(graph.nodes_of(hard[qid]), nodes)
        wrong = wrong if len(wrong) else np.setdiff1d(graph.passage_nodes, nodes)
        others = int(drawn.choice(page if len(page) else wrong)), int(drawn.choice(wrong))
        examples.append(Example(number, int(nodes[best]), others))
    return examples


def ignored(corpus: PassageCorpus, examples: Sequence[Example], passages: Sequence[int]) -> Tensor:
    """Which passages of a batch are relevant to a query that they were not drawn for; shape (queries, passages)."""
    relevant = corpus.relevant_nodes("train")
    same = torch.tensor([[node in relevant[one.query] for node in passages] for one in examples])
    own = torch.arange(len(examples))
    same[own, own * (len(passages) // len(examples))] = False
    return same


def project(states: TokenStates, projection: Tensor | None) -> TokenStates:
    """Token vectors projected, at unit length."""
    return states if projection is None else normalized(states.with_values(states.values @ projection.T))


def projected_store(
    frozen: ptg.TokenStore, encoder: ptg.TokenEncoder, projection: Tensor, path: Path
) -> ptg.TokenStore:
    """The token vectors of an encoder with a projection, made of stored ones without it: no text is encoded again.

    Args:
        frozen: What the encoder without the projection has stored.
        encoder: The encoder with the projection.
        projection: The projection.
        path: Folder of the new store, which is made if it is not there.
    """
    store = ptg.TokenStore(path)
    if store.built():
        return store

    def states_of(nodes: np.ndarray) -> tuple[TokenStates, np.ndarray]:
        return project(frozen.states(nodes), projection), frozen.ids(nodes).indices

    about = {name: frozen.meta[name] for name in ("titles", "graph_sha256", "dtype")}
    about |= {"encoder": encoder.name, "encoder_sha256": encoder.fingerprint()}
    return store.write(states_of, len(frozen), len(projection), about, ids=True, task="projecting")


def padded(states: TokenStates) -> tuple[Tensor, Tensor]:
    """Token vectors padded to one length, shape (nodes, tokens, d), and which of them are tokens."""
    matrices = [states[node] for node in range(len(states))]
    filled = [torch.ones(len(matrix), dtype=torch.bool) for matrix in matrices]
    return pad_sequence(matrices, batch_first=True), pad_sequence(filled, batch_first=True)
