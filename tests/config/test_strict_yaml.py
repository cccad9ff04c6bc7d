from __future__ import annotations

import pytest

from cudt.config import strict_yaml
from cudt.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1E5", 1e5),
        ("010", 10),
        ("no", "no"),
        ("true", True),
        ("", None),
        ("0:2.1:0.15", "0:2.1:0.15"),
        ("2024-01-31", "2024-01-31"),
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


@pytest.mark.parametrize("text", ["- a\n- b\n", "", "just a word", "3"])
def test_a_mapping_is_required(text):
    with pytest.raises(UserError, match=r"^x\.yaml: expected `key: value` lines, got \w+$"):
        strict_yaml.parse_mapping(text, "x.yaml")


VALUES = [
    "1e5",
    "010",
    "no",
    "true",
    "null",
    "~",
    "",
    "1:30",
    "2024-01-31",
    ".inf",
    " spaces ",
    "two\nlines\n",
    "a: b # c",
]
NUMBERS: list[object] = [1e-07, 1e22, 5e-324, 0.1 + 0.2, float("inf"), -3, True, None, [], {}]


def test_dumped_values_are_parsed_back():
    values = [*VALUES, *NUMBERS, "γ ≤ 2.1 " * 20, {"a": {"b": [1, {"c": None, "d": ["1e5", 1e5]}]}}]
    for document in (*values, {"section": {"list": values}}):
        parsed = strict_yaml.parse(strict_yaml.dump(document), "dumped")
        assert parsed == document
        assert repr(parsed) == repr(document)


# ---------------------------------------------------------------- hostile texts

_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 15)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: !!timestamp abc", "x.yaml:2: tag '!!timestamp' is not allowed; remove it"),
        (
            "a: !!python/name:os.system",
            "x.yaml:1: tag '!!python/name:os.system' is not allowed; remove it",
        ),
        ("a: !mine x", "x.yaml:1: tag '!mine' is not allowed; remove it"),
        (_BOMB, "x.yaml:1: anchors and aliases are not allowed; repeat the value"),
        ("a: " + "[" * 3000 + "]" * 3000, "x.yaml: nested too deep"),
        ("a: " + "9" * 10_000, "x.yaml:1: a number of 10000 digits is too long"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_hostile_text_is_refused_with_one_line(text, message):
    with pytest.raises(UserError) as error:
        strict_yaml.parse(text, "x.yaml")
    assert str(error.value) == message


def test_a_repeated_value_is_written_twice():
    repeated = [1]
    assert strict_yaml.parse(strict_yaml.dump({"a": repeated, "b": repeated}), "dumped") == {
        "a": [1],
        "b": [1],
    }


def test_a_file_that_is_no_text_is_refused_and_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "x.yaml").write_bytes("a: 1\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"x\.yaml: not valid UTF-8"):
        strict_yaml.read_text(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_bytes("a: ü\n".encode("utf-8-sig"))
    assert strict_yaml.parse(strict_yaml.read_text(tmp_path / "x.yaml"), "x") == {"a": "ü"}
