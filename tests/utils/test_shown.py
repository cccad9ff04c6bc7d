from __future__ import annotations

import shlex
import tracemalloc

import pytest

from cudt.utils.shown import as_command, brief, is_text, one_line, printable, printable_error, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("a\n\x1b[0m\ud800", r"'a\n\x1b[0m\ud800'"),
        ("it's", '"it\'s"'),
        (1.5, "1.5"),
        (None, "None"),
        pytest.param(10**5000, "<a very large int>", id="5000 digits"),
        ("x" * 1000, "'" + "x" * 58 + " … " + "x" * 17 + "'"),
    ],
)
def test_a_value_is_short_and_printable(value, text):
    assert shown(value) == text
    assert shown(value).isprintable()
    assert len(shown(value)) <= 80


def test_a_list_that_contains_itself_a_thousand_times_is_shown():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert shown(value) == "[[[[[[[...]]]]]]]"


@pytest.mark.parametrize("value", [[1, 2.5, None], (1,), {"b": "x", "a": [True, {"c": set()}]}, [[[["a"]]]], {1}])
def test_a_short_value_is_as_python_writes_it(value):
    assert shown(value) == repr(value)


def test_a_large_value_is_not_written_as_a_whole_before_it_is_cut():
    text = "x" * 1_000_000
    value = [text, {"a": text, text: [text] * 5000}] * 5000
    tracemalloc.start()
    try:
        assert shown(value).startswith("['xxx")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_texts_keep_what_is_harmless():
    text = "γ ≤ 2.1 — größe\u00a0µ\u202f…"
    assert one_line(text) == printable(text) == printable_error(text) == text
    assert one_line("a\nb\t") == r"a\nb\t"
    assert printable("a\nb\x07") == "a\nb\\x07"


def test_an_error_keeps_the_breaks_of_lists_alone():
    assert printable_error("3 errors\n  a\n  b\nc\n") == "3 errors\n  a\n  b\\nc"
    assert len(printable_error("x" * 10_000)) == 2000
    assert brief("abc", 80) == "abc"


def test_a_command_is_what_a_shell_reads():
    words = ["eval-ood", "a b", "$(c)", "d'e"]
    assert shlex.split(as_command(*words)) == ["cudt", *words]


def test_a_name_of_other_bytes_is_no_text():
    assert is_text("größe\n")
    assert not is_text("o\udcff")
