from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from cudt.config import mistakes
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


def told(**values) -> list[str]:
    with pytest.raises(ValidationError) as error:
        Basket.model_validate({"owner": "me", **values})
    return mistakes.explain(Basket, error.value, "the basket")


def test_one_mistake_is_told_in_a_line_and_several_in_a_line_each():
    with pytest.raises(UserError) as error:
        mistakes.refuse("file x", ["a: wrong"])
    assert str(error.value) == "file x: a: wrong"
    with pytest.raises(UserError) as error:
        mistakes.refuse("file x", ["a: wrong", "b: missing"])
    assert str(error.value) == "file x: 2 mistakes\n  a: wrong\n  b: missing"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"owners": 3}, "owners = 3: unknown key; did you mean 'owner'?"),
        ({"first": {**APPLE, "wieght": 1}}, "first.wieght = 1: unknown key; did you mean 'weight'?"),
        ({"by_name": {"red": {**APPLE, "wieght": 1}}}, "by_name.red.wieght = 1: unknown key; did you mean 'weight'?"),
        ({"heap": [APPLE, {**APPLE, "wieght": 1}]}, "heap.1.wieght = 1: unknown key; did you mean 'weight'?"),
        # What the file's writer chose to call a fruit is no key of the schema's, and none is near it.
        ({"by_name": {"weight": {**APPLE, "zzz": 1}}}, "by_name.weight.zzz = 1: unknown key"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_wherever_it_stands(values, line):
    assert told(**values) == [line]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"first": {}}, "first.kind: missing"),
        ({"by_name": {"red": {}}}, "by_name.red.kind: missing"),
        ({"owner": None}, "owner = None: input should be a valid string"),
        ({"by_name": {"red": {"kind": "aple"}}}, "by_name.red.kind = 'aple': must be 'apple' or 'pear'; did you mean"),
        ({"first": {"kind": "melon"}}, "first.kind = 'melon': must be 'apple' or 'pear'"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_told_with_its_path(values, line):
    (found,) = told(**values)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("values", "start", "allowed"),
    [
        ({"seed": 10}, "seed = 10: ", "≥ 0, < 10"),
        ({"first": {**APPLE, "weight": 0}}, "first.weight = 0: ", "> 0, ≤ 2"),
        ({"by_name": {"red": {**APPLE, "weight": 3}}}, "by_name.red.weight = 3: ", "> 0, ≤ 2"),
        ({"row": [1, -1]}, "row.1 = -1: ", "> 0"),
        ({"heap": [{**APPLE, "weight": 3}]}, "heap.0.weight = 3: ", "> 0, ≤ 2"),
    ],
)
def test_a_number_out_of_range_is_told_with_the_range(values, start, allowed):
    (found,) = told(**values)
    assert found.startswith(start)
    assert found.endswith(f"(allowed: {allowed})")


def test_a_file_that_is_no_mapping_is_called_by_its_name():
    with pytest.raises(ValidationError) as error:
        Basket.model_validate(3)
    (found,) = mistakes.explain(Basket, error.value, "the basket")
    assert found.startswith("the basket = 3: ")


def test_all_mistakes_are_told_in_the_order_they_were_found_in():
    found = told(seed=-1, first={"kind": "plum", "weight": 9}, colour="red")
    assert [line.split(" = ")[0] for line in found] == ["first.kind", "first.weight", "seed", "colour"]


def test_a_section_that_is_none_is_told_in_words_of_the_file():
    assert told(by_name={"red": None}) == ["by_name.red = None: input should be a valid dictionary"]


def test_a_key_that_is_no_word_is_told_by_its_place():
    assert told(by_name={1: APPLE}) == ["by_name.1: a key is a word; put it in quotes"]


def test_a_location_has_what_the_file_has_alone():
    assert mistakes.location({"loc": ("arms", 1, "[key]")}) == ["arms", 1]
    assert mistakes.location({"loc": ("alpha", "<list>", 0)}) == ["alpha", 0]


@pytest.mark.parametrize(("word", "is_one"), [("<range>", True), ("range", False), (0, False), ("<", False)])
def test_a_tag_of_a_union_is_no_key(word, is_one):
    assert mistakes.is_tag(word) is is_one
