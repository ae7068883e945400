"""What the training of a GNNEncoder learns from: queries with positives and negatives, texts, and an encoder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pyterrier as pt
import torch
from accelerate import PartialState

from pyterrier_graph.checks import check_type
from pyterrier_graph.encoders.queries import query_texts
from pyterrier_graph.encoders.vector_files import VectorsOf
from pyterrier_graph.graphs.edge_features import texts_of_passages
from pyterrier_graph.models.passage_network import PassageNetwork
from pyterrier_graph.retrieve.dense_validation import passages_of
from pyterrier_graph.retrieve.dual_encoder import DualEncoder
from pyterrier_graph.retrieve.neighbor_sampler import NeighborSampler
from pyterrier_graph.training.masked_graph import GNNEncoderTraining, LossQueries
from pyterrier_graph.training.masked_graph_model import PassageTexts, renewed, texts_of
from pyterrier_graph.training.mining import TrainingExamples
from pyterrier_graph.training.validation import checked_qrels, checked_topics

if TYPE_CHECKING:
    from pyterrier_dr import BiEncoder

    from pyterrier_graph.graphs import HeteroGraph
    from pyterrier_graph.retrieve.gnn_encoder import GNNEncoder


def loss_queries(
    model: GNNEncoder,
    topics: pd.DataFrame,
    qrels: pd.DataFrame | None,
    options: GNNEncoderTraining,
    examples: TrainingExamples | None = None,
) -> LossQueries:
    """The training queries with their positives and negatives; the arguments are those of ``GNNEncoder.fit``."""
    topics = query_texts(checked_topics(topics, model)).rename_axis("qid").reset_index()
    with PartialState(cpu=model._device.type == "cpu").main_process_first():
        sampler = model._sampler()
        sampler.encode()
    negatives = None
    if examples is not None:
        check_type("examples", examples, TrainingExamples, "what HardNegativeMiner(...).labeled(...) returns")
        ids = cast(pd.DataFrame, examples.ids.to_pandas()).astype(str)
        qrels = ids[["qid"]].assign(docno=ids["positive_docno"], label=1)
        columns = [name for name in ids if name.startswith("negative_")]
        negatives = ids.melt("qid", columns, value_name="docno")[["qid", "docno"]].drop_duplicates()
    if qrels is None:
        raise ValueError("there are no judgments: give qrels_tr, or examples= of a HardNegativeMiner")
    qrels = checked_qrels(qrels, model)
    relevant, by_document = passages_of(sampler, qrels[qrels["qid"].isin(topics["qid"])])
    if negatives is not None:
        there = negatives["qid"].isin(relevant["qid"]) & (sampler.numbers_of(negatives["docno"].tolist()) >= 0)
        negatives = negatives[there]
    return LossQueries(topics, relevant, by_document, sampler, options, negatives)


def texts_by_docno(graph: HeteroGraph | None, texts: pt.Transformer | None) -> PassageTexts:
    """A function from docnos to texts: by the transformer where there is one, else from the graph."""
    if texts is not None:
        return partial(texts_of_passages, texts)
    if graph is None:
        raise ValueError("training the encoder needs the passages' texts: give graph=, or fit(..., texts=)")
    return lambda docnos: graph.texts(graph.nodes_of(docnos))


def trainable(encoder: BiEncoder) -> DualEncoder:
    """A copy of an encoder with weights of its own, which can learn."""
    if not isinstance(encoder, DualEncoder):
        raise ValueError(f"only a DualEncoder learns, this encoder is {encoder!r}")
    return encoder.apply_attributes()


def joint_vectors(
    network: PassageNetwork, encoder: DualEncoder, sampler: NeighborSampler, passage_texts: PassageTexts
) -> VectorsOf:
    """Computes passages by a network and an encoder in their present state."""
    encoder.network.eval()
    network, device = network.eval(), encoder.network.device

    @torch.inference_mode()
    def vectors_of(passages: np.ndarray) -> np.ndarray:
        batch: Any = sampler.sample(passages)
        texts = texts_of(sampler, passage_texts, passages, batch.queries)
        own = torch.from_numpy(encoder.encode_docs(texts.passages)).to(device)
        sources = torch.from_numpy(encoder.encode_queries(texts.sources)).to(device) if texts.sources else None
        return network(renewed(batch.to(device), own, sources)).cpu().numpy()

    return vectors_of
