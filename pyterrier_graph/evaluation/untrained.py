"""Finds the Estimators of a pipeline, and checks that a new pipeline shares no training with an earlier one."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pyterrier as pt

from pyterrier_graph.artifacts import weights_sha256


def trained_stages(pipeline: pt.Transformer) -> list[pt.Estimator]:
    """The Estimators that ``pipeline.fit`` trains; warns about Estimators inside of operators.

    Raises:
        ValueError: If the pipeline has no Estimator among its stages.
    """
    stages = _inner(pipeline) if isinstance(pipeline, pt.Compose) else [pipeline]
    trained = [stage for stage in stages if isinstance(stage, pt.Estimator)]
    others = [stage for stage in stages if not isinstance(stage, pt.Estimator)]
    nested = [estimator for stage in others for estimator in _estimators(stage)]
    if not trained:
        hint = "; fit does not train Estimators inside of operators such as +" if nested else ""
        raise ValueError(f"nothing to train: no stage of {pipeline!r} is a pt.Estimator{hint}")
    for estimator in nested:
        warnings.warn(f"{estimator!r} is not trained: it is inside of a stage of the pipeline", stacklevel=4)
    return trained


def _estimators(transformer: pt.Transformer) -> Iterator[pt.Estimator]:
    for inner in _inner(transformer):
        if isinstance(inner, pt.Estimator):
            yield inner
        else:
            yield from _estimators(inner)


def _inner(transformer: pt.Transformer) -> list[pt.Transformer]:
    # pt.inspect.subtransformers omits artifacts, and all other stages of a pipeline that has an artifact
    values: list[Any] = []
    for attribute in pt.inspect.transformer_attributes(transformer, strict=False):
        values += attribute.value if isinstance(attribute.value, (list, tuple)) else [attribute.value]
    return [value for value in values if isinstance(value, pt.Transformer)]


class Untrained:
    """Compares each pipeline with earlier ones, to find training that they share."""

    def __init__(self) -> None:
        # Estimators (without a digest), and torch modules with a digest of their weights
        self._seen: list[tuple[weakref.ref[Any], str | None]] = []

    def check(self, pipeline: pt.Transformer) -> pt.Transformer:
        """Returns the pipeline.

        Raises:
            ValueError: If the pipeline has no Estimator, shares an Estimator with an earlier pipeline, or shares torch
                weights with an earlier pipeline that have changed since.
        """
        found: list[tuple[Any, str | None]] = []
        for estimator in trained_stages(pipeline):
            found.append((estimator, None))
            found += [(module, weights_sha256(module)) for module in _modules(estimator)]
        for thing, digest in found:
            earlier = [before for reference, before in self._seen if reference() is thing]
            if earlier and digest is None:
                raise ValueError(f"make_pipeline returned {thing!r} for a second time: it has to make a new object")
            if any(before != digest for before in earlier):
                raise ValueError(
                    f"a {type(thing).__name__} that is shared by folds was changed by training: "
                    "make_pipeline has to load it anew"
                )
        self._seen += [(weakref.ref(thing), digest) for thing, digest in found]
        return pipeline


def _modules(estimator: pt.Estimator) -> Iterator[Any]:
    """The torch modules that are attributes of an Estimator, or of its attributes."""
    torch = sys.modules.get("torch")  # without an import of torch there are no modules
    if torch is None:
        return
    for value in vars(estimator).values():
        for candidate in (value, *getattr(value, "__dict__", {}).values()):
            if isinstance(candidate, torch.nn.Module):
                yield candidate
