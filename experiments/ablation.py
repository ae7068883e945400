r"""Which mechanisms earn their place: each is taken away, and measured over stored vectors.

    python -m experiments.ablation qasper=PATH cacm=PATH trec-car=PATH cranfield=PATH medquad=PATH vaswani=PATH \
        numpydoc-numpy numpydoc-numpy-see-also html=/usr/share/doc/postgresql-doc-15/html \
        --words 30000 qasper=1000000 vaswani=15000 --encoder all-MiniLM-L6-v2 --plain --output OUTPUT
    python -m experiments.ablation ... --encoder FOLDER/all-mpnet-base-v2 --tokens 128 --output OUTPUT
    python -m experiments.ablation ... --encoder all-MiniLM-L6-v2 --output OUTPUT --page experiments/results/ablation.md

Vectors, results of BM25 and the measure of each query are stored in OUTPUT, for each encoder and size of the sample; a
call that was stopped continues. The page is written from all that is stored, of all calls.

The mechanisms are short functions of arrays in :mod:`experiments.ablation_parts.variants`, which need nothing of the
package but its graph; :mod:`experiments.ablation_parts.mechanisms` lists the systems.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.ablation_parts import mechanisms, page, variants
from experiments.ablation_parts.corpus import Corpus
from experiments.ablation_parts.encoding import Encoder, Store
from experiments.ablation_parts.samples import sampled
from experiments.ablation_parts.systems import Bench
from experiments.collections import open_collection
from experiments.harness.collection import Collection
from experiments.harness.command import Named
from pyterrier_graph.encoders.names import resolve

WHOLE = ("cranfield", "vaswani")  # collections of abstracts, each of which is one passage
NO_LIMIT, PASSAGE_WORDS = 1_000_000, 120
PASSAGES = 4000  # of MedQuAD
QUERY_TOKENS = 128
OTHER_LETTERS = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшжыз")


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("collections", nargs="*", type=Named.parse, help="NAME or NAME=FOLDER")
    command.add_argument("--output", type=Path, required=True, help="folder of all that is stored")
    command.add_argument("--encoder", default="all-MiniLM-L6-v2", help="a checkpoint")
    command.add_argument("--tokens", type=int, default=256, help="tokens of a text")
    command.add_argument("--threads", type=int, default=2, help="threads that encode")
    command.add_argument(
        "--words", nargs="+", default=[], help="size of samples, N, and NAME=N where it differs"
    )
    command.add_argument("--plain", action="store_true", help="encode texts without titles, too")
    command.add_argument("--windows", action="store_true", help="encode further windows, too")
    command.add_argument("--around", action="store_true", help="encode with sentences around, too")
    command.add_argument(
        "--other-letters", action="store_true", help="the encoder reads Cyrillic letters instead"
    )
    command.add_argument("--page", type=Path, help="write the page of results there")
    return command


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Measures the systems, and returns the measure of each query: see :func:`measured`."""
    options = command_line().parse_args(arguments)
    sizes = dict(word.split("=") if "=" in word else ("", word) for word in options.words)
    collections = {}
    for name, path in options.collections:
        about = argparse.Namespace(collection=name, path=path, passages=PASSAGES)
        words = sizes.get(name, sizes.get(""))
        collections[name] = sampled(open_collection(about), int(words) if words else None)
    return run(collections, options)


def run(
    collections: dict[str, Collection],
    options: argparse.Namespace,
    encode: Callable[[Sequence[str]], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Measures the systems on collections.

    Args:
        collections: The collections, or samples of them, by name.
        options: See :func:`command_line`.
        encode: Encodes texts; by default the checkpoint does.
    """
    label, size = Path(options.encoder).name, "sample" if options.words else "full"
    folder: Path = options.output / "vectors" / label
    of_passages, of_queries = [encode, encode] if encode else encoders(options)
    stores = Store(folder / "passages", of_passages), Store(folder / "queries", of_queries)
    for name, collection in collections.items():
        place = options.output / size / name
        words = NO_LIMIT if name in WHOLE else PASSAGE_WORDS
        graph = collection.graph(place / "documents", passage_words=words, verbose=False)
        corpus = Corpus(collection, graph, place / "bm25", *stores)
        if options.other_letters:
            passages, queries = map(enciphered, stores)
            corpus = Corpus(collection, graph, place / "bm25", passages, queries)
            name = f"{name}, other letters"
        values = measured(corpus, options).assign(collection=name, encoder=label, size=size)
        file = options.output / "values" / f"{label}-{size}-{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        values.to_csv(file, index=False)
        print(
            name,
            values[values["name"] == mechanisms.CHOSEN].groupby(["past", "part"])["value"].mean(),
        )
    stored = [
        pd.read_csv(file, dtype={"qid": str}) for file in sorted(options.output.glob("values/*.gz"))
    ]
    values = pd.concat(stored, ignore_index=True)
    if options.page:
        options.page.write_text(page.written(values), encoding="utf-8")
    return values


def encoders(options: argparse.Namespace) -> list[Callable[[Sequence[str]], np.ndarray]]:
    """The encoders of passages and of queries, which are loaded when there is something to encode."""

    def lazy(tokens: int) -> Callable[[Sequence[str]], np.ndarray]:
        loaded = cache(lambda: Encoder(resolve(options.encoder), tokens, options.threads))
        return lambda texts: loaded()(texts)

    return [lazy(options.tokens), lazy(min(options.tokens, QUERY_TOKENS))]


def enciphered(store: Store) -> Callable[[Sequence[str]], np.ndarray]:
    """The vectors of texts in letters that an English encoder hardly knows."""
    return lambda texts: store([text.lower().translate(OTHER_LETTERS) for text in texts])


def measured(corpus: Corpus, options: argparse.Namespace) -> pd.DataFrame:
    """nDCG@10 of each query: ``past, part, name, qid, value``, and ``alike``, the mean cosine of passages."""
    forms = {"plain": options.plain, "windows": options.windows, "around": options.around}
    rows = []
    for past in (False, True):
        for number, division in enumerate(corpus.divisions()):
            if past and not len(division.past.topics):
                continue
            bench = Bench(corpus, division, number, past=past)
            for part, name, system in mechanisms.systems(past=past, **forms):
                values = {"qid": division.test.topics["qid"], "value": bench.measure(*system)}
                rows.append(pd.DataFrame({"past": past, "part": part, "name": name, **values}))
    found = pd.concat(rows, ignore_index=True)
    return found.assign(alike=variants.alikeness(corpus.read("titled")), passages=len(corpus))


if __name__ == "__main__":
    main()
