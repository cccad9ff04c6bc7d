from __future__ import annotations

import io

import pytest
from rich.console import Console

from cudt.utils.text import duration, track


def terminal() -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=True, width=80, color_system=None), screen


def test_a_terminal_shows_a_bar_and_is_clean_at_the_end():
    console, screen = terminal()
    list(track([1, 2], 2, "decoding ucsd train", console))
    shown = screen.getvalue()
    assert "decoding ucsd train" in shown
    assert "100%" in shown
    erase_the_line = "\x1b[2K"
    assert shown.endswith(erase_the_line)


def test_where_nobody_is_looking_nothing_is_shown(capsys):
    screen = io.StringIO()
    assert list(track(iter("abc"), 3, "counting", Console(file=screen))) == ["a", "b", "c"]
    assert list(track([], 0, "nothing")) == []
    assert list(track(iter("abc"), 3, "counting")) == ["a", "b", "c"]
    assert screen.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_what_takes_long_prints_a_line_every_half_minute(monkeypatch):
    screen, now = io.StringIO(), [0.0]
    monkeypatch.setattr("cudt.utils.text.time.monotonic", lambda: now[0])
    for _ in track(range(10), 10, "measuring [σ_x]", Console(file=screen, width=20)):
        now[0] += 12
    # Three items take 36 seconds, and so on; the seven left take 84.
    assert screen.getvalue().splitlines() == [
        "measuring [σ_x]  3/10  0:01:24 left",
        "measuring [σ_x]  6/10  48.0 s left",
        "measuring [σ_x]  9/10  12.0 s left",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_other_processes_print_nothing(monkeypatch, terminal):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("cudt.utils.text._INTERVAL", -1.0)
    screen = io.StringIO()
    assert list(track("abc", 3, "counting", Console(file=screen, force_terminal=terminal))) == [
        "a",
        "b",
        "c",
    ]
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (3.14, "3.1 s"),
        (59.9, "59.9 s"),
        (307, "0:05:07"),
        (3600.4, "1:00:00"),
        (273600, "3 days, 4:00:00"),
    ],
)
def test_a_duration_in_words(seconds, words):
    assert duration(seconds) == words
