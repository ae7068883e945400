"""Cross-validation: one run over all queries, each ranked by a pipeline that was trained on others."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.evaluation.folds import Parts, check_folds, parts_of, query_folds
from pyterrier_graph.evaluation.untrained import Untrained, trained_stages

CONFIGURATION = "cross_validation.json"
RUN = "fold{}.csv.gz"


def cross_validate(
    make_pipeline: Callable[[int], pt.Transformer],
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
    folds: int | Sequence[Collection[str]] = 5,
    *,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    on_trained: Callable[[int, pt.Transformer], None] | None = None,
    verbose: bool = True,
) -> pd.DataFrame:
    """Ranks every query by a pipeline that was trained without it.

    One fold after the other is for testing. The fold before it (the last one, before the first) is for validation, and
    the others are for training: of five folds three, as in Dong et al. (LGRe, Sect. 4.1). The outcome is one run over
    all queries, which ``pt.Experiment`` takes as a system, so that significance is tested over all of them::

        first = bm25 % 20 >> graph.passages()
        run = cross_validate(lambda fold: GraphMaxSim(graph, encoder), first(topics), qrels)
        pt.Experiment([first, run], topics, qrels, [nDCG @ 10, AP @ 100], baseline=0)

    ``fit`` of a pipeline is PyTerrier's. It applies the stages before an Estimator to the training queries, in every
    fold again (the example does it once, beforehand). It leaves out Estimators when it does so: what follows one is
    trained on what went into it. And it does not reach an Estimator inside of ``+``, ``**`` or another operator.

    Args:
        make_pipeline: Makes an untrained pipeline for the fold whose number, from 1, it is given; the number is for
            names of files. It is called once more beforehand, to describe the pipeline. What it shares between folds,
            such as an index or a frozen encoder, must not change by training.
        topics: Queries, or a run over them: what the pipeline takes, ``qid`` at least.
        qrels: ``qid, docno, label``. Queries without judgments are ranked, but not trained or validated on.
        folds: A number of folds, made by :func:`query_folds`; or the qids of each, as from :func:`folds_of`.
        seed: Seed of :func:`query_folds`. Seeds of training are the Estimators' own.
        output_dir: Where the run of each fold is kept when it is complete, so that a cross-validation that was killed
            goes on with the next fold. By default nowhere.
        on_trained: Called with the number of a fold and its trained pipeline, to save it for instance, when that has
            ranked the fold. After a kill it may be called for the same fold again.
        verbose: Whether to show progress.

    Returns:
        ``qid, docno, score, rank, fold``, the latter the number of the query's fold.

    Raises:
        TypeError: If ``make_pipeline`` is a pipeline.
        pt.validate.InputValidationError: If a column is missing.
        ValueError: If the folds overlap, are empty, fewer than three, or do not consist of the topics' queries; if no
            query for training or validation is judged; if there is nothing to train, or it was trained in another fold
            already; or if ``output_dir`` holds runs of another cross-validation.
    """
    if isinstance(make_pipeline, pt.Transformer):
        raise TypeError(
            f"{make_pipeline!r} is a pipeline: what it learns in one fold it would know in the next. "
            "Give a function that makes a new one: lambda fold: ..."
        )
    pt.validate.columns(topics, includes=["qid"])
    pt.validate.columns(qrels, includes=["qid", "docno", "label"])
    topics, qrels = topics.astype({"qid": str}), qrels.astype({"qid": str, "docno": str})
    if isinstance(folds, int):
        folds = query_folds(topics, folds, seed=seed)
    check_folds(folds, set(topics["qid"]))
    parts = [parts_of(folds, number) for number in range(1, len(folds) + 1)]
    _check_judged(parts, set(qrels["qid"]))
    untrained = Untrained()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if output_dir is None else output_dir)
        _claim(
            folder,
            {
                "folds": [sorted(fold) for fold in folds],
                "topics": _digest(topics, ["qid", "query", "docno", "score"]),
                "qrels": _digest(qrels, ["qid", "docno", "label"]),
                "pipeline": _describe(untrained.check(make_pipeline(1))),
            },
        )
        runs = []
        numbered = pt.tqdm(enumerate(parts, start=1), "cross_validate", len(parts), unit="fold", disable=not verbose)
        for number, part in numbered:
            file = folder / RUN.format(number)
            if not file.exists():
                pipeline = untrained.check(make_pipeline(number))
                run = _train_and_rank(pipeline, topics, qrels, part)
                if on_trained is not None:
                    on_trained(number, pipeline)
                del pipeline  # before there is another one
                with pt.io.finalized_autoopen(str(file), "b") as out:
                    out.write(run.to_csv(index=False).encode())
            # read back, so that the outcome is the same after a kill; a score as text, since pandas may round it
            run = pd.read_csv(file, dtype=str, keep_default_na=False).astype({"score": float})
            runs.append(pt.model.add_ranks(run).assign(fold=number))
    return pd.concat(runs, ignore_index=True)


def _check_judged(parts: Sequence[Parts], judged: set[str]) -> None:
    for number, part in enumerate(parts, start=1):
        for name in ("train", "validation"):
            if judged.isdisjoint(getattr(part, name)):
                raise ValueError(f"fold {number}: qrels have no judgment of any query for {name}")


def _train_and_rank(pipeline: Any, topics: pd.DataFrame, qrels: pd.DataFrame, parts: Parts) -> pd.DataFrame:
    data = []
    for qids in (parts.train, parts.validation):
        judgments = qrels[qrels["qid"].isin(qids)].reset_index(drop=True)
        judged = topics["qid"].isin(qids & set(judgments["qid"]))
        data += [topics[judged].reset_index(drop=True), judgments]
    pipeline.fit(*data)
    run = pipeline.transform(topics[topics["qid"].isin(parts.test)].reset_index(drop=True))
    pt.validate.result_frame(run, extra_columns=["score"], context=pipeline)
    run = run[["qid", "docno", "score"]].astype({"qid": str, "docno": str})
    if strangers := set(run["qid"]) - parts.test:
        raise ValueError(f"{pipeline!r} ranked the query {min(strangers)!r}, which it was not given")
    if run["score"].isna().any():
        raise ValueError(f"{pipeline!r} gave no score to document {run['docno'][run['score'].isna()].iloc[0]!r}")
    return run


def _claim(folder: Path, configuration: dict[str, Any]) -> None:
    """Notes in a folder whose runs it holds; raises ValueError if they are of another cross-validation."""
    note = folder / CONFIGURATION
    if any(folder.glob(RUN.format("*"))):
        before = json.loads(note.read_text("utf-8")) if note.exists() else {}
        if differing := sorted(key for key in configuration if before.get(key) != configuration[key]):
            raise ValueError(
                f"{str(folder)!r} holds runs of another cross-validation (other: {', '.join(differing)}): "
                "choose another output_dir, or delete it"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    with pt.io.finalized_open(str(note), "b") as out:
        out.write(json.dumps(configuration, indent=1).encode())


def _digest(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    text = frame[[column for column in columns if column in frame]].to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(pipeline: pt.Transformer) -> list[str]:
    """Stages and, of what is trained, all that it was made with, save where and how loudly it runs."""
    made_with = [
        f"{attribute.name}={attribute.value!r}"
        for estimator in trained_stages(pipeline)
        for attribute in pt.inspect.transformer_attributes(estimator, strict=False)
        if attribute.name not in ("device", "verbose")
    ]
    return [re.sub(r" at 0x[0-9a-fA-F]+", "", text) for text in (repr(pipeline), *made_with)]
