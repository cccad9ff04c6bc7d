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


# ---------------------------------------------------------------- hostile texts

_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 15)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: !!timestamp abc", "x.yaml:2: tag '!!timestamp' is not allowed here; remove it"),
        ("a: !!float ''", "x.yaml:1: expected a value of type float, got ''"),
        ("a: !!set [a]", "x.yaml:1: tag '!!set' is not allowed here; remove it"),
        ("a: !!python/name:os.system", "x.yaml:1: tag '!!python/name:os.system' is not allowed here; remove it"),
        ("a: !!binary aGk=", "x.yaml:1: tag '!!binary' is not allowed here; remove it"),
        ("a: !mine x", "x.yaml:1: tag '!mine' is not allowed here; remove it"),
        ("a: " + "[" * 3000 + "]" * 3000, "x.yaml:1: nested more than 50 levels deep"),
        ("[" * 100_000, "x.yaml:1: nested more than 50 levels deep"),
        (_BOMB, "x.yaml:5: more than 20,000 values, those of aliases and the lengths of texts included"),
        (
            f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 300)}]\n",
            "x.yaml:2: more than 20,000 values, those of aliases and the lengths of texts included",
        ),
        ("- a\n" * 20_000, "x.yaml:20000: more than 20,000 values, those of aliases and the lengths of texts included"),
        ("a: &a [*a]", "x.yaml:1: alias 'a' names no value before it"),
        ("a: 1\nb: \x00", r"x.yaml:2: character '\x00' is not allowed; save the file as UTF-8 text"),
        ('a: "\\e[31m"', r"x.yaml:1: character '\x1b' is not allowed; remove it"),
        ('a: "\\ud800"', "x.yaml:1: found invalid Unicode character escape code"),
        ("a: 1\nb: \ud800", "x.yaml:2: not valid UTF-8; save the file as UTF-8"),
        ("a: " + "9" * 10_000, "x.yaml:1: a number of 10000 digits; at most 100 are allowed"),
        ("a" * 1_000_001, "x.yaml: larger than 1,000,000 bytes; a file of cudt is far smaller"),
        ("a: 1\n---\nb: 2", "x.yaml:2: a second document begins here; write one document in a file"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_hostile_text_is_refused_at_once_with_its_line(text, message):
    with pytest.raises(UserError) as error:
        strict_yaml.parse(text, "x.yaml")
    assert str(error.value) == message


def test_an_alias_is_a_copy():
    value = strict_yaml.parse("a: &a {b: [1]}\nc: *a\n", "x.yaml")
    value["a"]["b"].append(2)
    assert value == {"a": {"b": [1, 2]}, "c": {"b": [1]}}


def test_a_merge_key_is_a_key_like_any_other():
    assert strict_yaml.parse("<<: {a: 1}\nb: 2\n", "x.yaml") == {"<<": {"a": 1}, "b": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\n".encode("utf-16"), "x.yaml:1: not valid UTF-8"),
        (b"a: 1\nb: \xff\n", "x.yaml:2: not valid UTF-8"),
        (b"a" * 1_000_001, "x.yaml: larger than 1,000,000 bytes"),
    ],
    ids=["utf-16", "latin-1", "large"],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UserError, match=message):
        strict_yaml.read_text(tmp_path / "x.yaml")


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "x.yaml").write_bytes("a: ü\n".encode("utf-8-sig"))
    assert strict_yaml.parse(strict_yaml.read_text(tmp_path / "x.yaml"), "x") == {"a": "ü"}


def test_files_of_earlier_versions_may_have_any_characters():
    text = strict_yaml.dump({"a": "\x1b[31m", "b": "half \ud800"})
    assert strict_yaml.parse(text, "old", allows_controls=True) == {"a": "\x1b[31m", "b": "half \ufffd"}
