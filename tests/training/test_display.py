from __future__ import annotations

import io
from dataclasses import replace

import pytest
from cudt.runs.dual import DualAtEnd
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.text import Text

from cudt.runs.info import VerdictInfo
from cudt.training.display import LiveDisplay, PlainDisplay, epoch_line
from cudt.training.picture import Picture, layer_table, verdict_table
from cudt.training.view import TrainingView

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
    weights=[-1.125, 1.0, 1.5],
)
ERM = replace(
    CONSTRAINED,
    title="reviews-ut · erm · seed 0",
    train_losses={3: 0.2},
    multipliers=None,
    weights=None,
)


def rendered(renderable: RenderableType, width: int = 120, height: int = 50) -> str:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(view: TrainingView, column: int) -> list[tuple[str, str]]:
    """Text and style of a column of the layer table."""
    found = layer_table(view).columns[column].cells
    return [
        (cell.plain, str(cell.style)) if isinstance(cell, Text) else (str(cell), "")
        for cell in found
    ]


def bars(text: str) -> list[float]:
    """The length of the bar in each line that has one, in characters."""
    eighths = " ▏▎▍▌▋▊▉█"
    lengths = [
        sum(eighths.index(sign) / 8 for sign in line if sign in eighths[1:])
        for line in text.splitlines()
    ]
    return [length for length in lengths if length]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bars_have_the_scale_of_their_losses_at_any_width(width):
    losses = [0.8, 0.75, 0.25, 0.1]
    view = replace(
        CONSTRAINED,
        rates=[0.1] * 4,
        train_losses=dict(enumerate(losses, 1)),
        validation_losses=losses,
    )
    drawn = bars(
        rendered(Picture(replace(view, multipliers=[1.0] * 4, weights=[1.0] * 4), ""), width)
    )
    assert drawn[0] >= 0.8 * 8 - 0.125
    assert [length / drawn[0] for length in drawn] == pytest.approx(
        [loss / 0.8 for loss in losses], abs=0.04
    )


def test_an_epoch_is_one_line_with_losses_metric_and_multipliers():
    judged = replace(CONSTRAINED, verdicts=["met", "violated", "violated"])
    assert epoch_line(judged, "accuracy 0.9") == (
        "epoch  3/12  validation loss by layer 0.85 → 0.7 → 0.3  accuracy 0.9  λ 0 1.25 0.5  "
        "negative weight: 1  violated: 2–3"
    )
    assert epoch_line(replace(judged, warming_up=True), "accuracy 0.9").endswith(
        "warming up  negative weight: 1  violated: 2–3"
    )


def test_an_epoch_has_the_words_of_the_verdict():
    """A loss that is above the allowed one by chance, or within the slack, is not called
    violated."""
    assert (CONSTRAINED.violation(2) or 0) > 0
    borderline = replace(CONSTRAINED, verdicts=["met", "borderline", "met"])
    assert epoch_line(borderline, "").endswith("violated: none")
    assert epoch_line(replace(ERM, verdicts=["relaxed", "relaxed", "violated"]), "").endswith(
        "violated: 3  relaxed: 1–2"
    )


def plain_lines(
    seconds_per_update: float, per_epoch: int = 100, epochs: int = 2, first: int = 1
) -> list[str]:
    """What the plain display prints of a training without validation time."""
    output, now = io.StringIO(), [1000.0]
    view = replace(CONSTRAINED, steps=per_epoch * epochs, epochs=epochs)
    with PlainDisplay(Console(file=output, width=40), clock=lambda: now[0]) as display:
        for step in range(first, per_epoch * epochs + 1):
            now[0] += seconds_per_update
            here = replace(view, step=step, epoch=(step - 1) // per_epoch + 1)
            display.update(here)
            if step % per_epoch == 0:
                display.epoch_ended(here, "accuracy [b]0.9")
    return output.getvalue().splitlines()


def test_a_longer_epoch_has_a_line_each_quarter_and_a_long_one_every_half_minute():
    assert [line.split("  ")[1] for line in plain_lines(0.25)] == [
        *(
            "update 26/200",
            "update 51/200",
            "update 76/200",
            "validation loss by layer 0.85 → 0.7 → 0.3",
        ),
        *(
            "update 126/200",
            "update 151/200",
            "update 176/200",
            "validation loss by layer 0.85 → 0.7 → 0.3",
        ),
    ]
    slow = [line.split("  ")[1] for line in plain_lines(10, epochs=1)]
    assert slow[:3] == ["update 3/100", "update 6/100", "update 9/100"]
    # A single update that takes minutes is a line by itself.
    assert len(plain_lines(120, per_epoch=3, epochs=1)) == 4


def test_the_live_display_redraws_and_clears_up():
    output = io.StringIO()
    console = Console(
        file=output, force_terminal=True, width=120, _environ={"TERM": "xterm-256color"}
    )
    with LiveDisplay(console) as display:
        display.update(CONSTRAINED)
        display.epoch_ended(ERM, "accuracy 0.9")
    assert "reviews-ut · erm · seed 0" in output.getvalue()
    assert "accuracy 0.9" in output.getvalue()


def test_a_layer_is_green_where_it_descends_enough_and_red_where_not():
    assert cells(CONSTRAINED, 1) == [("0.8", "green"), ("0.75", "red"), ("0.25", "green")]
    bar_cells = layer_table(CONSTRAINED).columns[2].cells
    assert [
        cell.style.color.name for cell in bar_cells if isinstance(cell, Bar) and cell.style.color
    ] == [*("green", "red", "green")]
    assert [text for text, _ in cells(CONSTRAINED, 4)] == ["0.9", "0.72", "0.375"]
    assert [text for text, _ in cells(CONSTRAINED, 5)] == ["-0.1", "0.03", "-0.125"]
    assert [text for text, _ in cells(CONSTRAINED, 6)] == ["0", "1.25", "0.5"]


def test_a_negative_weight_is_marked_and_explained():
    assert cells(CONSTRAINED, 7) == [("-1.125 ▼", "bold yellow"), ("1  ", ""), ("1.5  ", "")]
    assert "negative weight w: the update raises" in rendered(Picture(CONSTRAINED, ""))
    assert "negative weight" not in rendered(
        Picture(replace(CONSTRAINED, weights=[0.0, 1.0, 1.5]), "")
    )


def test_a_loss_that_is_just_what_is_allowed_is_green():
    view = replace(CONSTRAINED, rates=[0.5, 0.5, 0.5], train_losses={1: 0.5, 2: 0.25, 3: 0.126})
    assert [style for _, style in cells(view, 1)] == ["green", "green", "red"]


def test_erm_shows_validation_losses_where_it_trains_on_the_last_layer_only():
    assert [text for text, _ in cells(ERM, 1)] == ["0.85", "0.7", "0.3"]
    assert [text for text, _ in cells(ERM, 3)] == ["0.85", "0.7", "0.3"]
    assert [text for text, _ in cells(ERM, 5)] == ["-0.05", "-0.065", "-0.05"]
    assert [column.header for column in layer_table(ERM).columns][-1] == "violation"


@pytest.mark.parametrize("losses", [{}, {3: float("nan")}, {1: float("inf"), 2: 0.1, 3: 0.1}])
@pytest.mark.parametrize("validation", [None, [0.85, 0.7, 0.3]])
def test_the_picture_draws_whatever_there_is(losses, validation):
    text = rendered(Picture(replace(ERM, train_losses=losses, validation_losses=validation), ""))
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [("met", "green"), ("borderline", "green"), ("relaxed", "yellow"), ("violated", "red")],
)
def test_a_verdict_has_its_colour_and_numbers(verdict, colour):
    row = VerdictInfo(
        layer=1,
        loss=0.5,
        allowed=0.45,
        violation=0.05,
        standard_error=0.01,
        slack=0.0,
        verdict=verdict,
    )
    table = verdict_table(0.7, [row])
    last = list(table.make([]).columns[-1].cells)[-1]
    assert isinstance(last, Text)
    assert str(last.style) == colour
    assert rendered(table).splitlines()[-1].split() == ["1", "0.5", "0.45", "0.05", "0.01", verdict]


def verdict(layer: int, **numbers: float) -> VerdictInfo:
    usual = {"loss": 0.5, "allowed": 0.45, "violation": 0.05, "standard_error": 0.01, "slack": 0.0}
    return VerdictInfo(layer=layer, verdict="borderline", **{**usual, **numbers})


def test_the_verdicts_of_a_constrained_run_have_multipliers_and_weights():
    table = verdict_table(0.7, [verdict(2)], DualAtEnd({1: 3.0, 2: 0.25}, {1: 1.0, 2: -0.5}))
    header, reference, line = rendered(table).splitlines()
    assert header.split()[-3:] == ["λ", "w", "verdict"]
    assert reference.split() == ["0", "0.7", "f_0"]
    assert line.split() == ["2", "0.5", "0.45", "0.05", "0.01", "0.25", "-0.5", "▼", "borderline"]


def test_a_low_terminal_shows_the_first_and_the_last_layers_and_the_legend():
    """Rich cuts off what is below the last line of a terminal: the layer that the model answers
    with."""
    deep = replace(
        CONSTRAINED,
        rates=[0.1] * 24,
        train_losses=dict.fromkeys(range(1, 25), 0.5),
        validation_losses=[0.5] * 24,
        multipliers=[0.0] * 24,
        weights=[-1.0] * 24,
    )
    lines = rendered(Picture(deep, "accuracy 0.9", "2 s/update"), 80, height=24).splitlines()
    assert len(lines) == 23
    assert [line.split()[0] for line in lines[4:-1]] == [
        *map(str, range(1, 10)),
        "⋮",
        *map(str, range(17, 25)),
    ]
    assert "negative weight" in lines[-1]
    lines = rendered(Picture(deep), 80, height=30).splitlines()
    assert [line.split()[0] for line in lines[4:-1]] == [*map(str, range(1, 25))]
