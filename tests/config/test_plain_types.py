from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, Tag

from cudt.config import plain_types
from cudt.config.alternatives import ColumnNames, NumberOrAuto
from cudt.config.bounds import Count, Positive
from cudt.config.plugin_names import NoiseName
from cudt.config.schema import Alpha
from cudt.config.section import Section


class Inner(Section):
    one: int
    two: int = 0


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "an integer"),
        (float, "a number"),
        (str, "text"),
        (bool, "true or false"),
        (Count, "a positive integer"),
        (Positive, "a positive number"),
        (Positive | None, "a positive number or null"),
        (Annotated[int, Field(ge=0, lt=10)], "an integer ≥ 0 and < 10"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (NumberOrAuto, "a positive number or 'auto'"),
        (Alpha, "a number ≥ 0 and < 1, a list of numbers ≥ 0 and < 1 or a section with `target_loss`"),
        (ColumnNames, "text or a list of texts of 1 to 2 entries"),
        (list[Count], "a list of positive integers"),
        (Annotated[dict[str, int], Field(min_length=1)], "a mapping that is not empty"),
        (Inner, "a section with `one`"),
        (NoiseName, "one of 'discrete', 'gaussian', 'uniform' or an import path"),
        (Any, "any value"),
    ],
)
def test_what_is_expected_reads_as_english(annotation, words):
    assert plain_types.expected(annotation) == words


def test_bounds_of_a_field_count_as_those_of_its_type():
    assert plain_types.expected(float, [Field(gt=0, le=1)]) == "a number > 0 and ≤ 1"


def test_type_and_range_are_distinguished():
    annotation = Annotated[float, Field(ge=0, lt=1)] | None
    assert plain_types.type_name(annotation) == "number or null"
    assert plain_types.allowed(annotation) == "≥ 0 and < 1"


def test_choices_are_found_inside_a_union():
    assert plain_types.choices(NumberOrAuto) == ["auto"]
    assert plain_types.choices(int) == []


def test_a_tagged_alternative_is_found():
    union = Annotated[int, Tag("<a>")] | Annotated[str, Tag("<b>")]
    assert plain_types.unwrapped(plain_types.tagged(union, "<b>")) == [str]
    assert plain_types.tagged(union, "<c>") == union
