"""Types and settings of configurations, which are frozen pydantic dataclasses.

A wrong value raises ``pydantic.ValidationError``, a ValueError that names the field.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
RelationWeights = dict[str, Annotated[float, Field(ge=0)]]
