"""Numbers with a lower bound, as keys of recipes, searches and scales have them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
#: A number of examples, layers, epochs, pixels …
Count = Annotated[int, Field(ge=1)]
CountFromZero = Annotated[int, Field(ge=0)]
