"""Types and settings of configurations, which are frozen pydantic dataclasses.

A wrong value raises ``pydantic.ValidationError``, a ValueError that names the field.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
RelationWeights = dict[str, Annotated[float, Field(ge=0)]]


def checked_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights of relations as floats; raises ValueError if one is negative or not a finite number."""
    adapter = TypeAdapter(RelationWeights, config=STRICT)
    return adapter.validate_python(dict(weights))
