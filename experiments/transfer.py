r"""The graph in retrieval, with the defaults of the package, next to what anyone can build.

    python -m experiments.transfer qasper=PATH cacm=PATH cranfield=PATH vaswani=PATH trec-car=PATH medquad=PATH \
        numpydoc-numpy numpydoc-numpy-see-also --output OUTPUT --values experiments/results/values
    python -m experiments.transfer html=/usr/share/doc/postgresql-doc-15/html --words 30000 --output OTHER \
        --values experiments/results/values
    python -m experiments.report

Each collection is named, with the folder that it is in. The rival is BM25 and a dense retriever, which both read
passages with their titles in front, and their hybrid. It is a GraphIndex whose GraphMean has no relations, so BM25,
the fusion, the evidence of other results and what is fitted are the same on both sides.

Training queries are the past queries in an index, and train networks; validation queries fit the settings. Queries
without splits are divided into five folds. All queries are tested once.

``--rerankers`` adds GraphMaxSim, HGAT, a cross-encoder and LGRe behind the GraphIndex with past queries.

Runs are stored in OUTPUT: a second call makes only the missing ones. ``--values`` is the folder for a table per
collection: nDCG@10, a row per query and a column per system.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyterrier as pt
from ir_measures import nDCG

import pyterrier_graph as ptg
from experiments.collections import open_collection
from experiments.harness.collection import ALL, Collection, Queries, joined
from experiments.harness.command import Named, add_options, show_progress
from experiments.harness.judgments import judged_ranking, relevant_passages
from experiments.harness.results import Results, claim, write
from experiments.harness.samples import sampled
from experiments.report import (
    BM25,
    CROSS,
    DENSE,
    FITTED,
    GNN,
    HGAT,
    INDEX,
    LGRE,
    MAXSIM,
    MEAN,
    MEAN_HYBRID,
    NETWORK,
    PAST,
    RIVAL,
    RIVAL_EVIDENCE,
    TRAINED,
)
from pyterrier_graph.encoders.names import DEFAULT, resolve
from pyterrier_graph.encoders.sentence_encoder import SentenceEncoder

WHOLE = ("cranfield", "vaswani")  # collections of abstracts, each of which is one passage
NO_LIMIT, PASSAGE_WORDS = 1_000_000, 120
FOLDS = 5  # of a collection's own queries
MEDQUAD, DEV_QUERIES = 4000, 300  # passages of MedQuAD, and validation queries, drawn at random
DEPTH = 300  # passages of a run; a document counts by its best passage
MEASURE = nDCG @ 10

PAIR_TOKENS = 128  # of a query and a passage

Make = Callable[[], pt.Transformer]


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("collections", nargs="+", type=Named.parse, help="NAME or NAME=FOLDER")
    command.add_argument("--output", type=Path, required=True, help="folder of indexes and runs")
    command.add_argument("--values", type=Path, help="folder of the tables")
    add_options(
        command,
        "sizes",
        words=(int, "words of a sample of each collection (all of it)"),
        encoder=(DEFAULT, "a checkpoint"),
        max_tokens=(256, "tokens of a passage"),
        max_query_tokens=(128, "tokens of a query"),
        rerankers=(False, "add rerankers"),
        cross_encoder=(DEFAULT, "the checkpoint that the cross-encoder and LGRe start at"),
    )
    return command


def main(arguments: Sequence[str] | None = None) -> dict[str, pd.DataFrame]:
    """Runs the comparison. Returns the table of each collection."""
    show_progress()
    options = command_line().parse_args(arguments)
    collections = {}
    for name, path in options.collections:
        about = argparse.Namespace(collection=name, path=path, passages=MEDQUAD)
        collections[name] = sampled(open_collection(about), options.words)
    return run(collections, options)


def run(
    collections: Mapping[str, Collection], options: argparse.Namespace
) -> dict[str, pd.DataFrame]:
    """Compares the systems. Returns the table of each collection."""
    claim(options.output, options, ("collections", "values", "rerankers"))
    encoder = SentenceEncoder(
        options.encoder,
        max_passage_tokens=options.max_tokens,
        max_query_tokens=options.max_query_tokens,
        verbose=False,
    )
    tables = {}
    for name, collection in collections.items():
        tables[name] = measured(Corpus(name, collection, encoder, options))
        print(f"{name}\n{tables[name].mean().round(3).to_string()}", flush=True)
        if options.values is not None:
            write(tables[name].round(4).reset_index(), options.values / f"{name}.csv")
            (options.values / "about.json").write_text(json.dumps(about(options), indent=1) + "\n")
    return tables


def about(options: argparse.Namespace) -> dict[str, Any]:
    """What was measured: the version, the last commit that changed the package, and the encoder."""
    command = ["git", "log", "-1", "--format=%h", "--", "pyterrier_graph"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "version": ptg.__version__,
        "commit": found.stdout.strip() or "unknown",
        "encoder": options.encoder,
        "max_tokens": options.max_tokens,
        "max_query_tokens": options.max_query_tokens,
    }


def measured(corpus: Corpus) -> pd.DataFrame:
    """nDCG@10 of each query (row) and system (column) on a collection."""
    parts = []
    for number in corpus.folds:
        with TemporaryDirectory(dir=corpus.output) as folder:
            fold = Fold(corpus, number, Path(folder))
            results = Results(corpus.output / f"fold-{number}", fold.test, [MEASURE])
            for name, make in fold.systems().items():
                logging.info("%s, fold %s: %s", corpus.name, number, name)
                results.add(name, partial(fold.ranking, make))
        parts.append(results.per_query)
    values = pd.concat(parts)
    table = values.pivot(index="qid", columns="name", values="value")
    return table[values["name"].drop_duplicates()].rename_axis(columns=None)


class Corpus:
    """A collection and the two indexes without past queries, which are made once.

    Args:
        name: Name of the collection on the command line.
        collection: The collection.
        encoder: Encodes passages and queries.
        options: See :func:`command_line`.
    """

    def __init__(
        self, name: str, collection: Collection, encoder: Any, options: argparse.Namespace
    ) -> None:
        self.name, self.collection, self.encoder, self.options = name, collection, encoder, options
        self.output = options.output / name
        self.output.mkdir(parents=True, exist_ok=True)
        self.folds = range(FOLDS) if ALL in collection.queries else [0]
        self.past = name != "html"  # no page is looked for by both training and test queries

    @cached_property
    def index(self) -> ptg.GraphIndex:
        """Passages with their titles as context."""
        return self._built(ptg.GraphIndex(self.output / "index", encoder=self.encoder))

    @cached_property
    def rival(self) -> ptg.GraphIndex:
        """The same without relations: vectors are those of the encoder."""
        without = ptg.GraphMean(None, self.encoder, {}, verbose=False)
        rival = ptg.GraphIndex(self.output / "rival", encoder=without)
        if not rival.built():  # texts are not encoded twice
            shutil.copytree(self.index.path / "encoded", rival.path / "encoded", dirs_exist_ok=True)
        return self._built(rival)

    @cached_property
    def maxsim(self) -> ptg.GraphMaxSim:
        """GraphMaxSim over stored token vectors."""
        options = self.options
        encoder = ptg.TokenEncoder(
            resolve(options.encoder),
            max_passage_tokens=options.max_tokens,
            max_query_tokens=options.max_query_tokens,
        )
        tokens = ptg.TokenStore(self.output / "tokens")
        if not tokens.built():
            tokens.build(self.index.graph, encoder, titles=True)
        return ptg.GraphMaxSim(self.index.graph, encoder, tokens=tokens, verbose=False)

    def _built(self, index: ptg.GraphIndex) -> ptg.GraphIndex:
        if index.built():
            return index
        words = NO_LIMIT if self.name in WHOLE else PASSAGE_WORDS
        return index.index(self.collection.get_corpus_iter(), passage_words=words)


class Fold:
    """The systems of one division of the queries.

    Args:
        corpus: The collection.
        number: Which division.
        folder: For indexes with past queries; it can be deleted afterwards.
    """

    def __init__(self, corpus: Corpus, number: int, folder: Path) -> None:
        self.corpus, self.folder = corpus, folder
        split = corpus.collection.split(fold=number, dev_queries=DEV_QUERIES)
        self.past, self.dev = split["train"], split["dev"]
        self.test = split["test"]
        more = [split["extra"]] if "extra" in split else []
        self.train: Queries = joined([self.past, *more])
        self.index_with_past = cache(partial(self._with_past, "index"))
        self.rival_with_past = cache(partial(self._with_past, "rival"))

    def systems(self) -> dict[str, Make]:
        """The systems by name; none is made before it is called."""
        corpus = self.corpus
        systems: dict[str, Make] = {
            BM25: lambda: corpus.index.bm25(DEPTH),
            DENSE: lambda: corpus.rival.dense(DEPTH),
            RIVAL: lambda: hybrid(corpus.rival),
            RIVAL_EVIDENCE: lambda: corpus.rival.hybrid(DEPTH),
            MEAN: lambda: corpus.index.dense(DEPTH),
            MEAN_HYBRID: lambda: hybrid(corpus.index),
            INDEX: lambda: corpus.index.hybrid(DEPTH),
        }
        if not corpus.past:
            return systems
        systems |= {
            BM25 + PAST: lambda: self.index_with_past().bm25(DEPTH),
            MEAN + PAST: lambda: self.index_with_past().dense(DEPTH),
            RIVAL_EVIDENCE + PAST: lambda: self.rival_with_past().hybrid(DEPTH),
            INDEX + PAST: lambda: self.index_with_past().hybrid(DEPTH),
            RIVAL_EVIDENCE + FITTED: lambda: self.rival_with_past().fit(*self.dev).hybrid(DEPTH),
            INDEX + FITTED: lambda: self.index_with_past().fit(*self.dev).hybrid(DEPTH),
        }
        systems[NETWORK + TRAINED] = partial(self._network, edges=False)
        systems[GNN + TRAINED] = partial(self._network, edges=True)
        if corpus.options.rerankers:
            systems[MAXSIM] = lambda: self._first(100) >> corpus.maxsim
            systems[HGAT] = self._hgat
            systems[CROSS] = partial(self._text_reranker, ptg.CrossEncoderReranker)
            systems[LGRE] = partial(self._text_reranker, ptg.LGReReranker)
        return systems

    def ranking(self, make: Make) -> pd.DataFrame:
        """The run of a system, of documents where documents are judged."""
        return judged_ranking(make()(self.test.topics), self.test.qrels, 100)

    def _with_past(self, kind: str) -> ptg.GraphIndex:
        """A copy of an index, with past queries."""
        original: ptg.GraphIndex = getattr(self.corpus, kind)
        shutil.copytree(original.path, self.folder / kind)
        index = ptg.GraphIndex(self.folder / kind, encoder=original.encoder)
        qrels = relevant_passages(index.graph, self.past.qrels)
        return index.update([], answered=(self.past.topics, qrels))

    def _network(self, *, edges: bool) -> pt.Transformer:
        """A network trained on the training queries."""
        index = self.index_with_past()
        gnn = ptg.GNNEncoder(
            index.graph,
            self.corpus.encoder,
            config=ptg.GNNEncoderConfig(edges=edges),
            query_graph=index.version.queries,
            folder=index.path / "encoded",
            verbose=False,
        )
        gnn.fit(*self.train, *self.dev)
        return gnn.index(self.folder / f"edges-{edges}.flex").retriever(DEPTH)

    def _first(self, depth: int) -> pt.Transformer:
        """The passages that are reranked."""
        return self.index_with_past().hybrid(depth)

    def _hgat(self) -> pt.Transformer:
        """HGAT with the token vectors of GraphMaxSim, trained."""
        start = self.corpus.maxsim
        hgat = ptg.HGATReranker(start.graph, start.encoder, tokens=start.tokens, verbose=False)
        pipeline: Any = self._first(100) >> hgat
        pipeline.fit(*self.train, *self.dev)
        return pipeline

    def _text_reranker(self, kind: Any) -> pt.Transformer:
        """A cross-encoder or LGRe, trained; both start at the same checkpoint."""
        checkpoint = resolve(self.corpus.options.cross_encoder)
        tokens = min(PAIR_TOKENS, self.corpus.options.max_tokens)
        pipeline: Any = self._first(20) >> kind(checkpoint, max_tokens=tokens, verbose=False)
        pipeline.fit(*self.train, *self.dev)
        return pipeline


def hybrid(index: ptg.GraphIndex) -> ptg.Hybrid:
    """The hybrid of an index without the evidence of other results."""
    return ptg.Hybrid(index.bm25(), index.dense(), num_results=DEPTH, verbose=False)


if __name__ == "__main__":
    main()
