from __future__ import annotations

import pytest

from cudt.config import strict_yaml
from cudt.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", "True"),
        ("true", True),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("0:2.1:0.15", "0:2.1:0.15"),
        ("2024-01-31", "2024-01-31"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("12e", "12e"),
    ],
)
def test_scalars_are_parsed_as_in_yaml_1_2(text, value):
    parsed = strict_yaml.parse(text, "x.yaml")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: duplicate key 'a'; remove one"),
        ("a:\n  b: 1\n  c:\n    d: 1\n    d: 1\n", "x.yaml:5: duplicate key 'd'; remove one"),
        ("a: [{b: 1}, {b: 1, b: 2}]\n", "x.yaml:1: duplicate key 'b'; remove one"),
        ("1: a\n'1': b\n", "x.yaml:2: duplicate key '1'; remove one"),
        ("a: 1\n? [b, c]\n: 2\n", "x.yaml:2: a key must be a word"),
    ],
)
def test_keys_are_words_without_duplicates(text, message):
    with pytest.raises(UserError) as error:
        strict_yaml.parse(text, "x.yaml")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\n", 3),
        ("a:\n\t- b\n", 2),
        ("a: 1\nb: c: d\n", 2),
        ("a: *nowhere\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
    ],
)
def test_a_syntax_error_names_file_and_line(text, line):
    with pytest.raises(UserError, match=rf"^x\.yaml:{line}: [^\n]+$"):
        strict_yaml.parse(text, "x.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: !!int x",
        "a: !!float x",
        "a: !!bool maybe",
        "a: !!python/name:os.system x",
        "a: \x00",
        pytest.param("9" * 5000, id="5000 digits"),
    ],
)
def test_a_text_that_cannot_be_parsed_is_a_user_error(text):
    with pytest.raises(UserError, match=r"^x\.yaml"):
        strict_yaml.parse(text, "x.yaml")


@pytest.mark.parametrize("text", ["- a\n- b\n", "", "just a word", "3"])
def test_a_mapping_is_required(text):
    with pytest.raises(UserError, match=r"^x\.yaml: expected `key: value` lines, got \w+$"):
        strict_yaml.parse_mapping(text, "x.yaml")


def test_keys_of_a_mapping_are_text():
    assert strict_yaml.parse_mapping("2: a\nb: c\n", "x.yaml") == {"2": "a", "b": "c"}


@pytest.mark.parametrize(
    "value",
    [
        "1e5",
        "2e-5",
        "010",
        "no",
        "true",
        "null",
        "~",
        "",
        "=",
        "1:30",
        "0:2.1:0.15",
        "2024-01-31",
        ".inf",
        " spaces ",
        "two\nlines\n",
        "a: b # c",
        "γ ≤ 2.1 " * 20,
        1e-07,
        1e22,
        5e-324,
        0.1 + 0.2,
        float("inf"),
        -3,
        True,
        None,
        [],
        {},
        {"a": {"b": [1, {"c": None, "d": ["1e5", 1e5]}]}},
    ],
)
def test_dumped_values_are_parsed_back(value):
    for document in (value, {"key": value}, {"section": {"list": [value]}}):
        parsed = strict_yaml.parse(strict_yaml.dump(document), "dumped")
        assert parsed == document
        assert repr(parsed) == repr(document)


def test_dumping_keeps_the_order_of_keys():
    assert list(strict_yaml.parse(strict_yaml.dump({"b": 1, "a": 2}), "dumped")) == ["b", "a"]
