"""Cross-validation: a run over all queries by pipelines that were trained on other queries."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from pyterrier_graph.checks import check_frame
from pyterrier_graph.storage.artifact import check_identity, frame_sha256, pipeline_identity
from pyterrier_graph.training.validation import checked_qrels

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
        make_pipeline: Takes the number of a fold (from 1) and returns an untrained pipeline. It is called once more
            before the first fold, to describe the pipeline. Pipelines may share what training does not change, such as
            an index or a frozen encoder, but neither Estimators nor their networks. PyTerrier's ``fit`` does not train
            an Estimator inside ``+``, ``**`` or another operator.
        topics: The input of the pipeline, queries or a run: ``qid`` and whatever else the pipeline needs.
        qrels: ``qid, docno, label``. Queries without judgments are ranked, but not used for training or validation.
        folds: Number of folds, made by :func:`query_folds`; or the qids of each fold.
        seed: Seed of :func:`query_folds`. Estimators have seeds of their own.
        output_dir: Folder for the run of each complete fold. If the call is interrupted, the same call continues.
        verbose: Whether to show progress.

    Returns:
        ``qid, docno, score, rank, fold``, where ``fold`` is the number of the query's test fold.

    Raises:
        ValueError: If folds overlap, the pipeline has no Estimator, two folds share an Estimator, or
            ``output_dir`` holds runs of another cross-validation.
    """
    topics, qrels = check_frame(topics, "cross_validate"), checked_qrels(qrels, "cross_validate")
    pt.validate.columns(topics, includes=["qid"])
    topics = topics.astype({"qid": str})
    if isinstance(folds, int):
        folds = query_folds(topics, folds, seed=seed)
    splits = _splits(folds, topics)
    pipeline = make_pipeline(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch if output_dir is None else output_dir)
        _check_folder(folder, pipeline, folds, topics, qrels)
        runs = []
        progress = pt.tqdm(splits, desc="cross_validate", unit="fold", disable=not verbose)
        for number, split in enumerate(progress, start=1):
            file = folder / RUN.format(number)
            if not file.exists():
                earlier, pipeline = pipeline, make_pipeline(number)
                _check_new(pipeline, earlier)
                run = _train_and_rank(pipeline, topics, qrels, split)
                with pt.io.finalized_autoopen(str(file), "b") as out:
                    out.write(run.to_csv(index=False).encode())
            runs.append(_read_run(file).assign(fold=number))
    return pd.concat(runs, ignore_index=True)


def _check_folder(
    folder: Path,
    pipeline: pt.Transformer,
    folds: Sequence[Collection[str]],
    topics: pd.DataFrame,
    qrels: pd.DataFrame,
) -> None:
    """Raises ValueError if the folder has runs of another cross-validation."""
    identity = {
        "folds": [sorted(fold) for fold in folds],
        "topics": frame_sha256(topics.filter(["qid", "query", "docno", "score"])),
        "qrels": frame_sha256(qrels.filter(["qid", "docno", "label"])),
        "pipeline": [pipeline_identity(pipeline), *map(_arguments, _estimators(pipeline))],
    }
    begun = any(folder.glob(RUN.format("*")))
    check_identity(
        folder / CONFIGURATION, identity, "runs of another cross-validation", begun=begun
    )


def _check_new(pipeline: pt.Transformer, earlier: pt.Transformer) -> None:
    """Raises ValueError if the pipeline has an Estimator of an earlier one."""
    used = [*map(id, _estimators(earlier))]
    for estimator in _estimators(pipeline):
        if id(estimator) in used:
            raise ValueError(
                f"make_pipeline returned {estimator!r} for a second time, with what it learned in "
                "another fold: it has to make a new one"
            )


def _splits(folds: Sequence[Collection[str]], topics: pd.DataFrame) -> list[list[set[str]]]:
    """The qids for training, validation and test, for each test fold.

    Raises ValueError unless each query is in one fold.
    """
    if len(folds) < 3 or not all(folds):
        raise ValueError(
            f"training, validation and test need at least 3 folds with queries, got {len(folds)} folds"
        )
    times = Counter(qid for fold in folds for qid in set(fold))
    times.subtract(set(topics["qid"]))
    wrong = sorted(qid for qid, count in times.items() if count)
    if wrong:
        raise ValueError(
            f"each query must be in exactly one fold, which {len(wrong)} are not: {wrong[:5]}"
        )
    splits = []
    for number in range(len(folds)):
        test, *train, validation = map(set, [*folds[number:], *folds[:number]])
        splits.append([set().union(*train), validation, test])
    return splits


def _estimators(pipeline: pt.Transformer) -> list[pt.Estimator]:
    """The Estimators that ``pipeline.fit`` trains; raises ValueError if there is none."""
    stages: Any = [pipeline]
    if isinstance(pipeline, pt.Compose):
        stages = pt.inspect.subtransformers(pipeline)["transformers"]
    estimators = [stage for stage in stages if isinstance(stage, pt.Estimator)]
    if not estimators:
        problem = f"nothing to train: no stage of {pipeline} is a pt.Estimator"
        raise ValueError(f"{problem}; fit does not train Estimators inside of operators such as +")
    return estimators


def _arguments(estimator: pt.Estimator) -> str:
    """The arguments of an Estimator except device and verbose."""
    return ", ".join(
        f"{attribute.name}={pipeline_identity(attribute.value)}"
        for attribute in pt.inspect.transformer_attributes(estimator, strict=False)
        if attribute.name not in ("device", "verbose")
    )


def _train_and_rank(
    pipeline: Any, topics: pd.DataFrame, qrels: pd.DataFrame, split: list[set[str]]
) -> pd.DataFrame:
    """Trains a pipeline on the queries of a split, and returns its run of the test queries."""
    *trained_on, test = split
    data = []
    for qids in trained_on:
        judgments = qrels[qrels["qid"].isin(qids)].reset_index(drop=True)
        judged = topics["qid"].isin(qids & set(judgments["qid"]))
        data += [topics[judged].reset_index(drop=True), judgments]
    pipeline.fit(*data)
    run = pipeline.transform(topics[topics["qid"].isin(test)].reset_index(drop=True))
    pt.validate.result_frame(run, extra_columns=["score"], context=pipeline)
    return run[["qid", "docno", "score"]].astype({"qid": str, "docno": str})


def _read_run(file: Path) -> pd.DataFrame:
    """Reads a run from its file; pandas would round scores and take the docno ``NA`` for a missing value."""
    run = pd.read_csv(file, dtype=str, keep_default_na=False).astype({"score": float})
    return pt.model.add_ranks(run)


def query_folds(topics: pd.DataFrame, folds: int = 5, *, seed: int = 0) -> list[set[str]]:
    """Divides queries at random into folds whose sizes differ by at most one, and returns the qids of each fold.

    Args:
        topics: Queries or a run: ``qid``. The order of rows does not matter.
        folds: Number of folds: at least three, at most the number of queries.
        seed: Seed of the random division.

    Raises:
        ValueError: If there are fewer than three folds, or fewer queries than folds.
    """
    from sklearn.model_selection import KFold

    topics = check_frame(topics, "query_folds")
    pt.validate.columns(topics, includes=["qid"])
    qids = sorted(set(topics["qid"].astype(str)))
    if folds > len(qids):
        raise ValueError(f"{len(qids)} queries in {folds} folds: a query is needed in each")
    splits = KFold(folds, shuffle=True, random_state=seed).split(qids)
    return [{qids[row] for row in test} for _, test in splits]
