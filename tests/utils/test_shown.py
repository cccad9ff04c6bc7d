from __future__ import annotations

import shlex

import pytest

from cudt.utils.text import as_command, is_text, one_line, printable, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\n\x1b[0m\ud800", r"'a\n\x1b[0m\ud800'"),
        ("it's", '"it\'s"'),
        (None, "None"),
        ("x" * 1000, "'" + "x" * 58 + " … " + "x" * 17 + "'"),
    ],
)
def test_a_value_is_short_and_printable(value, text):
    assert shown(value) == text


def test_texts_keep_what_is_harmless():
    text = "γ ≤ 2.1 — größe\u00a0µ\u202f…"
    assert one_line(text) == printable(text) == text
    assert one_line("a\nb\t") == r"a\nb\t"
    assert printable("a\nb\x07") == "a\nb\\x07"


def test_a_command_is_what_a_shell_reads():
    words = ["eval-ood", "a b", "$(c)", "d'e"]
    assert shlex.split(as_command(*words)) == ["cudt", *words]


def test_a_name_of_other_bytes_is_no_text():
    assert is_text("größe\n")
    assert not is_text("o\udcff")
