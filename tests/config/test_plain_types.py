from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field, Tag

from cudt.config import plain_types
from cudt.config.schema import Alpha, ColumnNames, Count, Positive, Section


class Inner(Section):
    one: int
    two: int = 0


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Count, "a positive integer"),
        (Positive | None, "a positive number or null"),
        (Annotated[int, Field(ge=0, lt=10)], "an integer ≥ 0 and < 10"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (
            Alpha,
            "a number ≥ 0 and < 1, a list of numbers ≥ 0 and < 1 or a section with `target_loss`",
        ),
        (ColumnNames, "text or a list of texts of 1 to 2 entries"),
        (Inner, "a section with `one`"),
    ],
)
def test_what_is_expected_reads_as_english(annotation, words):
    assert plain_types.expected(annotation) == words


def test_a_tagged_alternative_is_found():
    union = Annotated[int, Tag("<a>")] | Annotated[str, Tag("<b>")]
    assert plain_types.unwrapped(plain_types.tagged(union, "<b>")) == [str]
    assert plain_types.tagged(union, "<c>") == union
