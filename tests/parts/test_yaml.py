"""YAML files: the scalars of YAML 1.2, no key twice, no tags, no anchors."""

from __future__ import annotations

import pytest

from cudt.config import yaml
from cudt.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("010", 10),
        ("no", "no"),
        ("True", True),
        ("", None),
        ("0:2.1:0.15", "0:2.1:0.15"),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    parsed = yaml.parse(text, "x.yaml")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: !!timestamp abc", "x.yaml:2: tag 'tag:yaml.org,2002:timestamp' is not allowed"),
        ("a: !!python/name:os.system", "x.yaml:1: tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("a: &a [x, x]\nb: [*a, *a]", "x.yaml:1: anchors and aliases are not allowed"),
        ("a: 1\nb: *nowhere", "x.yaml:2: anchors and aliases are not allowed"),
        ("a: " + "[" * 3000 + "]" * 3000, "x.yaml: maximum recursion depth"),
        ("a: " + "9" * 10_000, "x.yaml: Exceeds the limit"),
        ("a: 1\n? [b, c]\n: 2\n", "x.yaml:2: "),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_hostile_text_is_refused_with_one_line(text, message):
    with pytest.raises(UserError) as error:
        yaml.parse(text, "x.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "a", 3),
        ("a:\n  b: 1\n  c:\n    d: 1\n    d: 1\n", "d", 5),
        ("a: [{b: 1}, {b: 1, b: 2}]\n", "b", 1),
        ("1: a\n'1': b\n", "1", 2),
    ],
)
def test_a_key_may_not_be_given_twice(text, key, line):
    with pytest.raises(UserError, match=rf"^x\.yaml:{line}: duplicate key '{key}'"):
        yaml.parse(text, "x.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb: [1, 2\n", 3), ("a:\n\t- b\n", 2), ("a: 1\nb: c: d\n", 2), ("a: 1\n---\nb: 2\n", 2)],
)
def test_a_syntax_error_names_file_and_line(text, line):
    with pytest.raises(UserError, match=rf"^x\.yaml:{line}: [^\n]+$"):
        yaml.parse(text, "x.yaml")


def test_a_file_must_consist_of_keys_and_be_unicode(tmp_path):
    for text in ("- a\n- b\n", "", "just a word"):
        with pytest.raises(UserError, match=r"^x\.yaml: must consist of `key: value` lines"):
            yaml.parse_mapping(text, "x.yaml")
    file = tmp_path / "x.yaml"
    file.write_bytes("a: ü\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"x\.yaml: not valid UTF-8"):
        yaml.read(file)
    file.write_bytes("a: ü\n".encode("utf-8-sig"))
    assert yaml.read(file) == {"a": "ü"}


def test_dumped_values_are_parsed_back():
    texts = ["1e5", "010", "no", "true", "Null", "~", "", "1:30", ".inf", " x ", "a\nb", "a: b # c"]
    numbers: list[object] = [1e-07, 1e22, 5e-324, 0.1 + 0.2, float("inf"), -3, True, None, [], {}]
    repeated = ["γ ≤ 2.1 " * 20]
    for value in (*texts, *numbers, {"a": {"b": [texts, numbers]}, "c": repeated, "d": repeated}):
        for written in (yaml.dump(value), yaml.dump_line(value)):
            assert repr(yaml.parse(written, "dumped")) == repr(value)
