from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from cudt.config import mistakes
from cudt.config.mistakes import NO_VALUE, Mistake
from cudt.config.schema import Section
from cudt.utils.errors import UserError


class Fruit(Section):
    kind: Literal["apple", "pear"]
    weight: Annotated[float, Field(gt=0, le=2)] = 1.0


class Basket(Section):
    owner: str
    first: Fruit | None = None
    by_name: dict[str, Fruit] = Field(default_factory=dict)
    row: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    heap: list[Fruit] = Field(default_factory=list)
    seed: Annotated[int, Field(ge=0, lt=10)] | None = None


APPLE = {"kind": "apple"}


def found(**values: Any) -> list[Mistake]:
    with pytest.raises(ValidationError) as error:
        Basket.model_validate({"owner": "me", **values})
    return mistakes.explain(Basket, error.value)


def refused(*wrong: Mistake) -> str:
    with pytest.raises(UserError) as error:
        mistakes.refuse("x.yaml", wrong)
    return str(error.value)


# ---------------------------------------------------------------- the value and how it is printed


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (Mistake(("a", "b"), 3, "expected text"), "a.b: expected text, got 3"),
        (Mistake(("a", 0), None, "expected text"), "a.0: expected text, got None"),
        (Mistake(("a",), NO_VALUE, "missing"), "a: missing"),
        (Mistake((), 3, "expected a section"), "expected a section, got 3"),
    ],
)
def test_a_mistake_prints_as_key_message_and_value(mistake, line):
    assert str(mistake) == line


def test_one_mistake_is_printed_on_the_line_of_its_file_and_several_on_one_line_each():
    wrong, missing = Mistake(("a",), NO_VALUE, "wrong"), Mistake(("b",), NO_VALUE, "missing")
    assert refused(wrong) == "x.yaml: a: wrong"
    assert refused(wrong, missing) == "x.yaml: 2 errors\n  a: wrong\n  b: missing"


# ---------------------------------------------------------------- what pydantic found


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"owners": 3}, "owners: unknown key; did you mean 'owner'?"),
        ({"first": {**APPLE, "wieght": 1}}, "first.wieght: unknown key; did you mean 'weight'?"),
        (
            {"by_name": {"red": {**APPLE, "wieght": 1}}},
            "by_name.red.wieght: unknown key; did you mean 'weight'?",
        ),
        (
            {"heap": [APPLE, {**APPLE, "wieght": 1}]},
            "heap.1.wieght: unknown key; did you mean 'weight'?",
        ),
        # `weight` is a name that the author of the file chose here; no key of a fruit is close to
        # zzz.
        ({"by_name": {"weight": {**APPLE, "zzz": 1}}}, "by_name.weight.zzz: unknown key"),
    ],
)
def test_an_unknown_key_is_reported_with_the_closest_known_one(values, line):
    assert [str(mistake) for mistake in found(**values)] == [line]


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ({"first": {}}, Mistake(("first", "kind"), NO_VALUE, "missing", "missing")),
        (
            {"by_name": {"red": {}}},
            Mistake(("by_name", "red", "kind"), NO_VALUE, "missing", "missing"),
        ),
        (
            {"first": {"kind": "melon"}},
            Mistake(("first", "kind"), "melon", "expected one of 'apple', 'pear'", "literal_error"),
        ),
        (
            {"by_name": {"red": None}},
            Mistake(("by_name", "red"), None, "expected a section with `kind`", "model_type"),
        ),
        (
            {"seed": 10},
            Mistake(("seed",), 10, "expected an integer ≥ 0 and < 10 or null", "less_than"),
        ),
        ({"row": [1, -1]}, Mistake(("row", 1), -1, "expected a positive number", "greater_than")),
        ({"row": 1}, Mistake(("row",), 1, "expected a list of positive numbers", "list_type")),
        (
            {"heap": [{**APPLE, "weight": 3}]},
            Mistake(("heap", 0, "weight"), 3, "expected a number > 0 and ≤ 2", "less_than_equal"),
        ),
    ],
)
def test_a_mistake_has_path_value_and_what_is_expected(values, mistake):
    assert found(**values) == [mistake]


def test_a_key_that_is_a_number_is_reported_with_how_to_write_it():
    assert [str(mistake) for mistake in found(by_name={1: APPLE})] == [
        "by_name.1: expected text as a key; put it in quotes"
    ]


def test_a_key_that_is_missing_because_it_is_misspelt_is_one_mistake():
    (one,) = found(first={"knid": "apple"})
    assert str(one) == "first.knid: unknown key; did you mean 'kind'?"
    both = found(first={"weihgt": 1.0})
    assert sorted(map(str, both)) == [
        "first.kind: missing",
        "first.weihgt: unknown key; did you mean 'weight'?",
    ]
