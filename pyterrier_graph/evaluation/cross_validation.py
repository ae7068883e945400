"""Cross-validation: one run over all queries, in which a pipeline ranks each query after training on other queries."""

import hashlib
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pandas as pd
import pyterrier as pt

from pyterrier_graph.artifacts import weights_sha256
from pyterrier_graph.checks import check_frame
from pyterrier_graph.documents import level_mismatch
from pyterrier_graph.evaluation.folds import check_folds, parts_of, query_folds
from pyterrier_graph.training.validation import checked_qrels
from pyterrier_graph.warning_categories import DataWarning, QualityWarning

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
    """Ranks every query by a pipeline that was trained on other queries.

    Each fold is the test fold once. The fold before it (for the first fold, the last one) is for validation, and the
    others are for training, as in Dong et al. (LGRe, Sect. 4.1). ``pt.Experiment`` takes the result, one run over all
    queries, as a system, and tests significance over all queries::

        first = bm25 % 20 >> graph.passages()
        run = cross_validate(lambda fold: GraphMaxSim(graph), first(topics), qrels)
        pt.Experiment([first, run], topics, qrels, [nDCG @ 10, AP @ 100], baseline=0)

    The pipeline is trained by PyTerrier's ``fit``, which applies the stages before an Estimator to the training queries
    in every fold (the example applies them once, beforehand). PyTerrier's ``fit`` skips earlier Estimators when it does
    so, and does not train an Estimator inside ``+``, ``**`` or another operator.

    Args:
        make_pipeline: Takes the number of a fold (from 1, for file names) and returns an untrained pipeline. It is
            called once more before the first fold, to describe the pipeline. Training must not change what the
            pipelines share, such as an index or a frozen encoder.
        topics: The input of the pipeline, queries or a run: ``qid`` and whatever else the pipeline needs.
        qrels: ``qid, docno, label``. Queries without judgments are ranked, but not used for training or validation.
        folds: Number of folds, made by :func:`query_folds`; or the qids of each fold, as :func:`folds_of` returns them.
        seed: Seed of :func:`query_folds`. Estimators have seeds of their own.
        output_dir: Folder where the run of each complete fold is kept. After a kill, the same call goes on from there.
        on_trained: Called with the number of a fold and its trained pipeline after the fold was ranked, for instance to
            save the pipeline. After a kill, it may be called for the same fold again.
        verbose: Whether to show progress.

    Returns:
        ``qid, docno, score, rank, fold``, where ``fold`` is the number of the query's test fold.

    Raises:
        TypeError: If ``make_pipeline`` is a pipeline.
        pt.validate.InputValidationError: If a column is missing.
        ValueError: If the folds are wrong or without judgments; if the pipeline has no Estimator, or one that was
            trained in another fold; or if ``output_dir`` holds runs of another cross-validation.

    Warns:
        UserWarning: If the pipeline ranks passages and the judgments are of documents, or the other way round.
    """
    if isinstance(make_pipeline, pt.Transformer):
        raise TypeError(
            f"{make_pipeline!r} is a pipeline, which would keep what it learned in one fold for the next fold. "
            "Give a function that makes a new pipeline: lambda fold: ..."
        )
    topics, qrels = check_frame(topics, "cross_validate"), checked_qrels(qrels, "cross_validate")
    pt.validate.columns(topics, includes=["qid"])
    topics = topics.astype({"qid": str})
    if isinstance(folds, int):
        folds = query_folds(topics, folds, seed=seed)
    check_folds(folds, set(topics["qid"]))
    parts = [parts_of(folds, number) for number in range(1, len(folds) + 1)]
    for number, part in enumerate(parts, start=1):
        for name, qids in zip(("train", "validation"), part, strict=False):
            if qids.isdisjoint(qrels["qid"]):
                raise ValueError(f"fold {number}: qrels have no judgment of any query for {name}")
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
                del pipeline  # frees memory before the next pipeline is made
                with pt.io.finalized_autoopen(str(file), "b") as out:
                    out.write(run.to_csv(index=False).encode())
            # reading the file makes the result the same after a kill; pandas may round scores that it parses itself
            run = pd.read_csv(file, dtype=str, keep_default_na=False).astype({"score": float})
            if number == 1 and (message := level_mismatch(run["docno"], qrels["docno"])):
                warnings.warn(f"cross_validate: {message}", DataWarning, stacklevel=2)
            runs.append(pt.model.add_ranks(run).assign(fold=number))
    return pd.concat(runs, ignore_index=True)


def _train_and_rank(pipeline: Any, topics: pd.DataFrame, qrels: pd.DataFrame, parts: list[set[str]]) -> pd.DataFrame:
    *trained_on, test = parts
    data = []
    for qids in trained_on:
        judgments = qrels[qrels["qid"].isin(qids)].reset_index(drop=True)
        judged = topics["qid"].isin(qids & set(judgments["qid"]))
        data += [topics[judged].reset_index(drop=True), judgments]
    pipeline.fit(*data)
    run = pipeline.transform(topics[topics["qid"].isin(test)].reset_index(drop=True))
    pt.validate.result_frame(run, extra_columns=["score"], context=pipeline)
    run = run[["qid", "docno", "score"]].astype({"qid": str, "docno": str})
    if other := set(run["qid"]) - test:
        raise ValueError(f"{pipeline!r} ranked the query {min(other)!r}, which was not in its input")
    if run["score"].isna().any():
        raise ValueError(f"{pipeline!r} gave no score to document {run['docno'][run['score'].isna()].iloc[0]!r}")
    return run


def _claim(folder: Path, configuration: dict[str, Any]) -> None:
    """Writes the configuration into the folder; raises ValueError if the folder holds runs of another one."""
    note = folder / CONFIGURATION
    if not any(folder.glob(RUN.format("*"))):
        folder.mkdir(parents=True, exist_ok=True)
        with pt.io.finalized_open(str(note), "b") as out:
            out.write(json.dumps(configuration, indent=1).encode())
        return
    before = json.loads(note.read_text("utf-8")) if note.exists() else {}
    if differing := sorted(key for key in configuration if before.get(key) != configuration[key]):
        raise ValueError(
            f"{str(folder)!r} holds runs of another cross-validation (other: {', '.join(differing)}): "
            "choose another output_dir, or delete it"
        )


def _digest(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    text = frame[[column for column in columns if column in frame]].to_csv(index=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _describe(pipeline: pt.Transformer) -> list[str]:
    """The stages, and the arguments of Estimators but for device and verbose."""
    made_with = [
        f"{attribute.name}={attribute.value!r}"
        for estimator in _trained_stages(pipeline)
        for attribute in pt.inspect.transformer_attributes(estimator, strict=False)
        if attribute.name not in ("device", "verbose")
    ]
    return [re.sub(r" at 0x[0-9a-fA-F]+", "", text) for text in (repr(pipeline), *made_with)]


class Untrained:
    """Compares each pipeline with earlier ones, to find training that they share."""

    def __init__(self) -> None:
        self._seen: WeakValueDictionary[int, Any] = WeakValueDictionary()  # Estimators and torch modules by their id
        self._digests: dict[int, str] = {}  # of the weights of torch modules

    def check(self, pipeline: pt.Transformer) -> pt.Transformer:
        """Returns the pipeline; raises ValueError if it has an Estimator, or changed weights, of an earlier one."""
        estimators = _trained_stages(pipeline)
        for estimator in estimators:
            if id(estimator) in self._seen:
                raise ValueError(f"make_pipeline returned {estimator!r} for a second time: it has to make a new object")
        modules = [module for estimator in estimators for module in _modules(estimator)]
        for module in modules:
            digest = weights_sha256(module)
            if id(module) in self._seen and digest != self._digests[id(module)]:
                raise ValueError(
                    f"a {type(module).__name__} that is shared by folds was changed by training: "
                    "make_pipeline has to load it anew"
                )
            self._digests[id(module)] = digest
        self._seen.update((id(thing), thing) for thing in [*estimators, *modules])
        return pipeline


def _modules(estimator: pt.Estimator) -> Iterator[Any]:
    """The torch modules that are attributes of an Estimator, or of its attributes."""
    torch: Any = sys.modules.get("torch")  # without an import of torch there are no modules
    for value in vars(estimator).values() if torch else ():
        for candidate in (value, *getattr(value, "__dict__", {}).values()):
            if isinstance(candidate, torch.nn.Module):
                yield candidate


def _trained_stages(pipeline: pt.Transformer) -> list[pt.Estimator]:
    """The Estimators that ``pipeline.fit`` trains; raises ValueError if there is none, warns about nested ones."""
    stages = _inner(pipeline) if isinstance(pipeline, pt.Compose) else [pipeline]
    trained = [stage for stage in stages if isinstance(stage, pt.Estimator)]
    nested = [estimator for stage in stages if not isinstance(stage, pt.Estimator) for estimator in _nested(stage)]
    if not trained:
        hint = "; fit does not train Estimators inside of operators such as +" if nested else ""
        raise ValueError(f"nothing to train: no stage of {pipeline!r} is a pt.Estimator{hint}")
    for estimator in nested:
        warnings.warn(
            f"{estimator!r} is not trained: it is inside of a stage of the pipeline; make it a stage of its own",
            QualityWarning,
            stacklevel=4,
        )
    return trained


def _nested(transformer: pt.Transformer) -> Iterator[pt.Estimator]:
    for inner in _inner(transformer):
        yield from [inner] if isinstance(inner, pt.Estimator) else _nested(inner)


def _inner(transformer: pt.Transformer) -> list[pt.Transformer]:
    # pt.inspect.subtransformers omits artifacts, and all other stages of a pipeline that has an artifact
    values: list[Any] = []
    for attribute in pt.inspect.transformer_attributes(transformer, strict=False):
        values += attribute.value if isinstance(attribute.value, (list, tuple)) else [attribute.value]
    return [value for value in values if isinstance(value, pt.Transformer)]
