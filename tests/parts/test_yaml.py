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
        ("a: !!python/name:os.system", "1: tag 'tag:yaml.org,2002:python/name:os.system' is not"),
        ("a: &a [x, x]\nb: [*a, *a]", "1: anchors and aliases are not allowed"),
        ("a: 1\nb: *nowhere", "2: anchors and aliases are not allowed"),
        ("a:\n  b: 1\n  c:\n    d: 1\n    d: 1\n", "5: duplicate key 'd'"),
        ("1: a\n'1': b\n", "2: duplicate key '1'"),
        ("a: 1\nb: [1, 2\n", "3: expected ',' or ']'"),
        ("a: 1\n? [b, c]\n: 2\n", "2: "),
        ("a: 1\n---\nb: 2\n", "2: "),
    ],
    ids=ascii,
)
def test_what_is_refused_is_named_with_file_and_line(text, message):
    with pytest.raises(UserError) as error:
        yaml.parse(text, "x.yaml")
    assert str(error.value).startswith(f"x.yaml:{message}")
    assert "\n" not in str(error.value)


def test_endless_values_are_refused_with_one_line():
    for value in ("[" * 3000 + "]" * 3000, "9" * 10_000):
        with pytest.raises(UserError, match=r"^x\.yaml: [^\n]+$"):
            yaml.parse(f"a: {value}", "x.yaml")


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
