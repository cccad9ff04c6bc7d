"""Upper bounds of numbers: beyond them a value is a typing error, and would end in a traceback of a library."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from cudt.utils.shown import shown


class AtMost:
    """Marks the largest size of a number.

    Not part of the range that errors and reference pages print (`a positive integer`): no sensible value is near it.
    """

    def __init__(self, most: float) -> None:
        self.most = most

    def check(self, value: Any) -> Any:
        """The value, if it is not too large."""
        if isinstance(value, int | float) and abs(value) > self.most:
            limit = f"{self.most:,}" if isinstance(self.most, int) else f"{self.most:g}"
            raise ValueError(f"too large: at most {limit} is allowed, got {shown(value)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


#: What fp32 can hold, with room for products.
MAX_FLOAT = 1e30
#: More weights than any machine holds.
MAX_WEIGHTS = 10**12

Number = Annotated[float, AtMost(MAX_FLOAT)]
Positive = Annotated[float, Field(gt=0), AtMost(MAX_FLOAT)]
NotNegative = Annotated[float, Field(ge=0), AtMost(MAX_FLOAT)]
#: A number of examples, tokens, updates …
Count = Annotated[int, Field(ge=1), AtMost(10**9)]
CountFromZero = Annotated[int, Field(ge=0), AtMost(10**9)]
#: Layers, epochs, seeds, sides of images and widths of matrices, in which work or memory grows faster than in a count.
Layers = Annotated[int, Field(ge=1), AtMost(10_000)]
Epochs = Annotated[int, Field(ge=1), AtMost(10**6)]
Width = Annotated[int, Field(ge=1), AtMost(10**6)]
Side = Annotated[int, Field(ge=1), AtMost(10_000)]
Seed = Annotated[int, AtMost(2**63 - 1)]
