"""Keys that take one of two kinds of values. The value chooses its kind, so that an error is about
that kind alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from cudt.config.bounds import Positive

NumberOrAuto = Annotated[
    Annotated[Positive, Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
]
ColumnNames = Annotated[
    Annotated[str, Tag("<word>")]
    | Annotated[list[str], Field(min_length=1, max_length=2), Tag("<list>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<list>"),
]
WordOrWords = Annotated[
    Annotated[str, Tag("<word>")] | Annotated[list[str], Field(min_length=1), Tag("<list>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<list>"),
]
WorkersOrAuto = Annotated[
    Annotated[int, Field(ge=0), Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
]
