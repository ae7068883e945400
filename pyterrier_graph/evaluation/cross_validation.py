"""Cross-validation: a run over all queries by pipelines that were trained on other queries."""

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt


def cross_validate(
    make_pipeline: Callable[[int], pt.Transformer],
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
    folds: int | Sequence[Collection[str]] = 5,
    *,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> pd.DataFrame:
    """Ranks every query by a pipeline that was trained on other queries.

    Each fold is the test fold once. The fold before it (the last one, for the first fold) is for validation, and the
    others are for training, as in Dong et al. (LGRe, Sect. 4.1). ``pt.Experiment`` takes the result, one run over all
    queries, as a system, and tests significance over all queries::

        first = bm25 % 20 >> graph.passages()
        run = cross_validate(lambda fold: GraphMaxSim(graph), first(topics), qrels)
        pt.Experiment([first, run], topics, qrels, [nDCG @ 10, AP @ 100], baseline=0)

    Args:
        make_pipeline: Takes the number of a fold (from 1) and returns a new, untrained pipeline. Pipelines may share
            what training does not change, such as an index or a frozen encoder, but neither Estimators nor their
            networks, which would know the test queries of other folds. PyTerrier's ``fit`` does not train an Estimator
            inside ``+``, ``**`` or another operator.
        topics: The input of the pipeline, queries or a run: ``qid`` and whatever else the pipeline needs.
        qrels: ``qid, docno, label``. Queries without judgments are ranked, but not used for training or validation.
        folds: Number of folds, made by :func:`query_folds`; or the qids of each fold, at least three folds.
        seed: Seed of :func:`query_folds`. Estimators have seeds of their own.
        output_dir: Folder for the run of each complete fold, one folder per cross-validation. A fold whose run exists
            is skipped, so an interrupted call continues when it is repeated.
        verbose: Whether to show progress.

    Returns:
        ``qid, docno, score, rank, fold``, where ``fold`` is the number of the query's test fold.

    Raises:
        ValueError: If a query is not in exactly one fold, or an Estimator was trained in another fold.
    """
    topics = topics.astype({"qid": str})
    qrels = qrels.astype({"qid": str})
    if isinstance(folds, int):
        folds = query_folds(topics, folds, seed=seed)
    in_folds = [qid for fold in folds for qid in fold]
    if sorted(in_folds) != sorted(set(topics["qid"])):
        raise ValueError("each query must be in exactly one fold")
    runs: list[pd.DataFrame] = []
    trained: list[pt.Transformer] = []
    progress = pt.tqdm(folds, desc="cross_validate", unit="fold", disable=not verbose)
    for number, test in enumerate(progress, start=1):
        file = None if output_dir is None else Path(output_dir, f"fold{number}.parquet")
        if file is not None and file.exists():
            run = pd.read_parquet(file)
        else:
            pipeline: Any = make_pipeline(number)
            _check_new(pipeline, trained)
            # the folds after the test fold, then the folds before it; the last one is for validation
            *train, validation = [*folds[number:], *folds[: number - 1]]
            train_qids = set().union(*train)
            train_data = _judged_rows(topics, qrels, train_qids)
            validation_data = _judged_rows(topics, qrels, validation)
            pipeline.fit(*train_data, *validation_data)
            run = pipeline.transform(_rows(topics, test))
            run = run[["qid", "docno", "score"]]
            run = run.astype({"qid": str, "docno": str})
            if file is not None:
                _write_run(run, file)
        ranked = pt.model.add_ranks(run)
        runs.append(ranked.assign(fold=number))
    return pd.concat(runs, ignore_index=True)


def _write_run(run: pd.DataFrame, file: Path) -> None:
    """Writes the run of a fold; a call that is interrupted leaves no file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with pt.io.finalized_open(str(file), "b") as out:
        run.to_parquet(out)


def _check_new(pipeline: pt.Transformer, trained: list[pt.Transformer]) -> None:
    """Raises ValueError if a stage was trained in another fold; adds the Estimators to ``trained``."""
    stages: Any = [pipeline]
    if isinstance(pipeline, pt.Compose):
        stages = pt.inspect.subtransformers(pipeline)["transformers"]
    for stage in stages:
        if any(stage is estimator for estimator in trained):
            raise ValueError(f"make_pipeline must make a new {stage!r} for each fold")
    trained += [stage for stage in stages if isinstance(stage, pt.Estimator)]


def _rows(frame: pd.DataFrame, qids: Collection[str]) -> pd.DataFrame:
    """The rows of some queries."""
    rows = frame[frame["qid"].isin(qids)]
    return rows.reset_index(drop=True)


def _judged_rows(
    topics: pd.DataFrame, qrels: pd.DataFrame, qids: Collection[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Topics and judgments of the queries that have judgments."""
    judgments = _rows(qrels, qids)
    judged = set(judgments["qid"])
    return _rows(topics, judged), judgments


def query_folds(topics: pd.DataFrame, folds: int = 5, *, seed: int = 0) -> list[set[str]]:
    """Divides queries at random into folds whose sizes differ by at most one, and returns the qids of each fold.

    Args:
        topics: Queries or a run: ``qid``. The order of rows does not matter.
        folds: Number of folds, from three to the number of queries.
        seed: Seed of the random division.

    Raises:
        ValueError: If there are fewer queries than folds.
    """
    from sklearn.model_selection import KFold

    distinct = set(topics["qid"].astype(str))
    qids = np.array(sorted(distinct), dtype=object)
    splits = KFold(folds, shuffle=True, random_state=seed).split(qids)
    return [set(qids[test]) for _, test in splits]
