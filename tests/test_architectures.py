"""Checkpoints of the architectures that today's models have: loading, prompts, lengths, precision, a training step."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from transformers.models.auto import CONFIG_MAPPING

import pyterrier_graph as ptg
from pyterrier_graph.graphs.memory_graph import MemoryGraph

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
POSITIONS = 48
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "xlm-roberta": {
        "pad_token_id": 1,
        "max_position_embeddings": POSITIONS + 2,
    },  # positions begin after padding
    "modernbert": {"pad_token_id": 1, "global_attn_every_n_layers": 2, "reference_compile": False},
    "qwen3": {"pad_token_id": 1, "num_key_value_heads": 1, "head_dim": 8},
}
TEXTS = {
    "Latin": "Größe Ätna ALPHA",
    "no spaces": "検索エンジンは文書を探します",
    "right to left": "محرك البحث يجد الوثائق",
    "Thai": "ค้นหาเอกสาร",
    "emoji": "👩‍🔬 🔬",
}
PARTS = {
    "Latin": "größe",
    "no spaces": "文書",
    "right to left": "البحث",
    "Thai": "เอกสาร",
}  # which BM25 finds
pytestmark = pytest.mark.slow
architectures = pytest.mark.parametrize("name", ARCHITECTURES)


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, which knows all scripts and upper case; a decoder's one has a token at the end only."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = {
        word: number
        for number, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    made = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    single, pair = (
        ("$A </s>", "$A $B </s>") if name == "qwen3" else ("<s> $A </s>", "<s> $A </s> $B </s>")
    )
    pairs = [("<s>", 0), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=pairs
    )
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    side = "left" if name == "qwen3" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=made, padding_side=side, cls_token="<s>", sep_token="</s>", **names
    )


@cache
def checkpoint(name: str, *, labels: int = 0) -> str:
    """Folder of an untrained network, with its tokenizer, which does not name a length."""
    folder = mkdtemp(prefix=f"tiny-{name}-")
    made = tokenizer(name)
    options = (
        {"vocab_size": len(made), "max_position_embeddings": POSITIONS}
        | SIZES
        | ARCHITECTURES[name]
    )
    config = CONFIG_MAPPING[name](**options | ({"num_labels": labels} if labels else {}))
    torch.manual_seed(0)
    (AutoModelForSequenceClassification if labels else AutoModel).from_config(
        config
    ).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@cache
def sentences(name: str) -> str:
    """Folder of a sentence encoder with prompts; a decoder takes the last token."""
    folder = mkdtemp(prefix=f"tiny-sentences-{name}-")
    transformer = Transformer(checkpoint(name))
    pooling = Pooling(16, pooling_mode="lasttoken" if name == "qwen3" else "mean")
    prompts = {"query": "Q: ", "document": "D: "}
    SentenceTransformer(modules=[transformer, pooling, Normalize()], prompts=prompts).save(folder)
    return folder


@architectures
def test_sentence_encoder(name: str) -> None:
    encoder = ptg.DualEncoder(
        sentences(name), batch_size=2, device="cpu", dtype="float32", verbose=False
    )
    assert encoder.similarity == "cosine" and encoder.max_passage_tokens == POSITIONS
    texts = [*TEXTS.values(), "x " * 100]
    vectors = encoder.encode_docs(texts)
    assert np.isfinite(vectors).all() and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder.encode_docs([text]) for text in texts])
    assert np.allclose(vectors, alone, atol=1e-5)  # padding changes nothing
    assert not np.allclose(
        encoder.encode_queries(texts), vectors, atol=1e-3
    )  # their prompts differ
    assert not np.allclose(*encoder.encode_docs(["alpha", "ALPHA"]), atol=1e-4)


@architectures
def test_graph_mean_and_index(name: str, tmp_path: Path) -> None:
    docs = [{"docno": docno, "title": "title", "text": text} for docno, text in TEXTS.items()]
    index = ptg.GraphIndex(tmp_path / "index", encoder=sentences(name), verbose=False).index(docs)
    topics = pd.DataFrame({"qid": [*TEXTS], "query": [*TEXTS.values()]})
    assert index.hybrid().transform(topics).groupby("qid")["docno"].nunique().eq(len(TEXTS)).all()
    parts = pd.DataFrame(PARTS.items(), columns=["qid", "query"])
    found = index.bm25().transform(parts).set_index("qid")["docno"].str.partition("%")[0]
    assert found.to_dict() == {part: part for part in PARTS} and len(found) == len(PARTS)
    assert len(index.search(TEXTS["no spaces"])) == len(TEXTS)


@architectures
def test_token_encoder(name: str) -> None:
    encoder = ptg.TokenEncoder(checkpoint(name), device="cpu", dtype="float32")
    texts = [*TEXTS.values(), "x " * 100, ""]
    states = encoder.encode_passages(texts)
    assert states.lengths.max() == encoder.max_passage_tokens and states.lengths[-1] == 0
    for number, text in enumerate(texts[:-1]):
        assert torch.allclose(states[number], encoder.encode_passages([text])[0], atol=1e-5)
    assert encoder.tokens("ALPHA") != encoder.tokens("alpha")
    graph = MemoryGraph(tiny.documents())
    reranker = ptg.GraphMaxSim(graph, encoder)
    assert np.isfinite(reranker.transform(tiny.run().assign(text="x"))["score"]).all()
    encoder.forward_passages(texts[:2]).values.sum().backward()
    assert all(
        weight.grad is None or weight.grad.isfinite().all()
        for weight in encoder.network.parameters()
    )


@architectures
def test_cross_encoder(name: str) -> None:
    options = {"max_tokens": POSITIONS, "device": "cpu", "verbose": False}
    training = ptg.CrossEncoderTraining(epochs=1, batch_size=2)
    run = tiny.run().assign(
        text=[[*TEXTS.values()][row % 5] * (1 + row % 3) for row in range(len(tiny.run()))]
    )
    for model in (ptg.CrossEncoderReranker, ptg.LGReReranker):
        reranker = model(checkpoint(name, labels=1), dtype="float32", **options)
        scores = reranker.transform(run).set_index(["qid", "docno"])["score"]
        alone = reranker.transform(run[:1]).set_index(["qid", "docno"])["score"]
        assert scores.nunique() > 5 and scores[alone.index].to_numpy() == pytest.approx(
            alone.to_numpy(), abs=1e-4
        )
    reranker = ptg.CrossEncoderReranker(
        checkpoint(name, labels=1), training=training, **options
    ).fit(run, tiny.qrels())
    assert np.isfinite(reranker.transform(run)["score"]).all()
