"""Figures are drawn by other processes; what the user sees is the same as without them."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest

from cudt.report.figures import Figure, background, in_background
from cudt.utils.errors import UserError

HERE = os.getpid()


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    if sys.platform != "linux":
        pytest.skip("processes are forked on Linux only")
    monkeypatch.setattr(background, "cores", lambda: 2)


def drawn(name: str) -> Figure:
    """A figure whose recipe says which process drew it."""
    return Figure("here" if os.getpid() == HERE else "worker", name, Path(f"{name}.png"), Path(f"{name}.pdf"))


def failing() -> Figure:
    raise UserError("no such colour")


def warning() -> Figure:
    warnings.warn("a strange value", RuntimeWarning, stacklevel=1)
    return drawn("b")


def printing() -> Figure:
    print("a strange font", file=sys.stderr)
    return drawn("b")


def dying() -> Figure:
    if os.getpid() != HERE:
        os._exit(3)
    return drawn("b")


def test_workers_draw_and_figures_keep_their_order():
    with in_background([partial(drawn, name) for name in "abcde"]) as figures:
        assert [(figure.recipe, figure.title) for figure in figures()] == [("worker", name) for name in "abcde"]
        assert figures() is figures()


def test_on_one_core_no_process_is_started(monkeypatch):
    monkeypatch.setattr(background, "cores", lambda: 1)
    with in_background([partial(drawn, name) for name in "ab"]) as figures:
        assert [figure.recipe for figure in figures()] == ["here", "here"]
        assert figures() is figures()


def test_an_error_reaches_the_user_as_it_is():
    with in_background([partial(drawn, "a"), failing]) as figures, pytest.raises(UserError, match="no such colour"):
        figures()


def test_a_warning_reaches_the_user():
    with (
        in_background([partial(drawn, "a"), warning]) as figures,
        pytest.warns(RuntimeWarning, match="a strange value"),
    ):
        assert [figure.title for figure in figures()] == ["a", "b"]


def test_a_message_reaches_the_user(capsys):
    with in_background([partial(drawn, "a"), printing]) as figures:
        assert [figure.title for figure in figures()] == ["a", "b"]
    assert capsys.readouterr().err == "a strange font\n"


def test_what_a_dead_worker_did_not_draw_is_drawn():
    with in_background([partial(drawn, "a"), dying]) as figures:
        assert [figure.title for figure in figures()] == ["a", "b"]


def test_no_figure_is_drawn_after_the_report_has_failed(tmp_path):
    def write(name: str) -> Figure:
        (tmp_path / name).touch()
        return drawn(name)

    jobs = [partial(write, str(number)) for number in range(200)]
    with pytest.raises(UserError), in_background(jobs):
        raise UserError("disk full")
    assert len(list(tmp_path.iterdir())) < 200
