from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from cudt.runs.info import VerdictInfo
from cudt.training.display import (
    LiveDisplay,
    PlainDisplay,
    TrainingView,
    bar,
    display_for,
    epoch_line,
    layer_table,
    picture,
    verdict_table,
)

CONSTRAINED = TrainingView(
    title="reviews-ut · constrained · seed 0",
    step=30,
    steps=120,
    epoch=3,
    epochs=12,
    reference=1.0,
    rates=[0.1, 0.1, 0.5],
    warming_up=False,
    train_losses={1: 0.8, 2: 0.75, 3: 0.25},
    validation_losses=[0.85, 0.7, 0.3],
    multipliers=[0.0, 1.25, 0.5],
)
ERM = replace(CONSTRAINED, title="reviews-ut · erm · seed 0", train_losses={3: 0.2}, multipliers=None)


def rendered(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(view: TrainingView, column: int) -> list[tuple[str, str]]:
    """Text and style of a column of the layer table."""
    found = layer_table(view).columns[column].cells
    return [(cell.plain, str(cell.style)) if isinstance(cell, Text) else (str(cell), "") for cell in found]


@pytest.mark.parametrize(
    ("value", "top", "drawn"),
    [
        (0, 1, ""),
        (1, 1, "█" * 28),
        (0.5, 1, "█" * 14),
        (1 / 28, 1, "█"),
        (1.5 / 28, 1, "█▌"),
        (0.125 / 28, 1, "▏"),
        (0.875 / 28, 1, "▉"),
        (3, 1, "█" * 28),
        (-1, 1, ""),
        (1, 0, ""),
    ],
)
def test_a_bar_is_as_long_as_its_value(value, top, drawn):
    assert bar(value, top) == drawn


def test_an_epoch_is_one_line_with_losses_metric_and_multipliers():
    assert epoch_line(CONSTRAINED, "accuracy 0.9") == (
        "epoch  3/12  validation loss by layer 0.85 → 0.7 → 0.3  accuracy 0.9  λ 0 1.25 0.5  violated: 2"
    )
    assert epoch_line(ERM, "accuracy 0.9").endswith("0.3  accuracy 0.9  violated: none")
    assert epoch_line(replace(CONSTRAINED, warming_up=True), "accuracy 0.9").endswith("warming up  violated: 2")


@pytest.mark.parametrize(
    ("terminal", "kind", "expected"),
    [(True, "xterm-256color", LiveDisplay), (True, "dumb", PlainDisplay), (False, "xterm-256color", PlainDisplay)],
)
def test_a_live_picture_is_for_terminals(terminal, kind, expected):
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": kind})
    assert type(display_for(console)) is expected


def test_the_plain_display_prints_a_line_for_each_epoch_and_none_between():
    output = io.StringIO()
    view = replace(CONSTRAINED, rates=[0.1] * 40, validation_losses=[0.123] * 40)
    with PlainDisplay(Console(file=output, width=40)) as display:
        display.update(view)
        assert output.getvalue() == ""
        display.epoch_ended(view, "accuracy [b]0.9")
    assert output.getvalue() == epoch_line(view, "accuracy [b]0.9") + "\n"


def test_the_live_display_redraws_and_clears_up():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, _environ={"TERM": "xterm-256color"})
    with LiveDisplay(console) as display:
        display.update(CONSTRAINED)
        display.epoch_ended(ERM, "accuracy 0.9")
    assert "reviews-ut · erm · seed 0" in output.getvalue()
    assert "accuracy 0.9" in output.getvalue()


def test_the_live_display_ends_when_training_fails():
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm-256color"})
    display = LiveDisplay(console)
    with pytest.raises(RuntimeError), display:
        raise RuntimeError
    assert not display._live.is_started


def test_a_layer_is_green_where_it_descends_enough_and_red_where_not():
    assert cells(CONSTRAINED, 1) == [("0.8", "green"), ("0.75", "red"), ("0.25", "green")]
    assert [style for _, style in cells(CONSTRAINED, 2)] == ["green", "red", "green"]
    assert [text for text, _ in cells(CONSTRAINED, 4)] == ["0.9", "0.72", "0.375"]
    assert [text for text, _ in cells(CONSTRAINED, 5)] == ["-0.1", "0.03", "-0.125"]
    assert [text for text, _ in cells(CONSTRAINED, 6)] == ["0", "1.25", "0.5"]


def test_a_loss_that_is_just_what_is_allowed_is_green():
    view = replace(CONSTRAINED, rates=[0.5, 0.5, 0.5], train_losses={1: 0.5, 2: 0.25, 3: 0.126})
    assert [style for _, style in cells(view, 1)] == ["green", "green", "red"]


def test_erm_shows_validation_losses_where_it_trains_on_the_last_layer_only():
    assert [text for text, _ in cells(ERM, 1)] == ["0.85", "0.7", "0.3"]
    assert [text for text, _ in cells(ERM, 3)] == ["0.85", "0.7", "0.3"]
    assert [text for text, _ in cells(ERM, 5)] == ["-0.05", "-0.065", "-0.05"]
    assert [text for text, _ in cells(ERM, 6)] == ["", "", ""]


def test_erm_before_the_first_validation_shows_the_last_layer_without_a_verdict():
    view = replace(ERM, validation_losses=None)
    assert cells(view, 1) == [("", ""), ("", ""), ("0.2", "")]
    assert [text for text, _ in cells(view, 4)] == ["0.9", "", ""]


@pytest.mark.parametrize("losses", [{}, {3: float("nan")}, {1: float("inf"), 2: 0.1, 3: 0.1}])
@pytest.mark.parametrize("validation", [None, [0.85, 0.7, 0.3]])
def test_the_picture_draws_whatever_there_is(losses, validation):
    text = rendered(picture(replace(CONSTRAINED, train_losses=losses, validation_losses=validation), ""))
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["1", "2", "3"]


def test_the_picture_has_a_heading():
    heading = rendered(picture(CONSTRAINED, "accuracy 0.9")).splitlines()[0]
    for part in ("reviews-ut · constrained · seed 0", "epoch 3/12", "update 30/120", "accuracy 0.9"):
        assert part in heading
    assert "warming up" not in heading
    assert "warming up" in rendered(picture(replace(CONSTRAINED, warming_up=True), ""))


@pytest.mark.parametrize(
    ("verdict", "colour"), [("met", "green"), ("borderline", "green"), ("relaxed", "yellow"), ("violated", "red")]
)
def test_a_verdict_has_its_colour_and_numbers(verdict, colour):
    row = VerdictInfo(layer=1, loss=0.5, allowed=0.45, violation=0.05, standard_error=0.01, slack=0.0, verdict=verdict)
    table = verdict_table([row])
    last = list(table.columns[-1].cells)[-1]
    assert isinstance(last, Text)
    assert str(last.style) == colour
    assert rendered(table).splitlines()[-1].split() == ["1", "0.5", "0.45", "0.05", "0.01", verdict]
