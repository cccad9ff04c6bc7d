from __future__ import annotations

import math

import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest

from cudt.report.figures import style


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["$x_{", "$$", r"a\$b", "<script>", "模型", "_hidden", "$x$ and $y$", "two\nlines", "x" * 500]
)
def test_any_name_is_drawn_as_it_is(name, tmp_path):
    figure, grid = style.panels(1, 1)
    grid[0, 0].set_title(style.plain(name))
    style.line(grid[0, 0], [0, 1], [0, 1], [0, 1], [0, 1], f"erm {style.plain(name)}", style.STYLES["erm"])
    style.legend_below(figure)
    made = style.save(figure, name, name, tmp_path / "a.b")
    assert made.png.name == "a.b.png"
    assert made.pdf.read_bytes().startswith(b"%PDF-")
    assert made.png.stat().st_size > 5_000
    assert plt.get_fignums() == []


def test_dollars_are_no_formula():
    figure, grid = style.panels(1, 1)
    text = grid[0, 0].set_title(style.plain("$a$"))
    assert text._preprocess_math(text.get_text()) == ("$a$", False)
    plt.close(figure)


@pytest.mark.parametrize(
    ("values", "scale", "low"),
    [
        ([math.nan, math.inf], "linear", None),
        ([], "linear", None),
        ([0.0, 0.0], "linear", 0.0),
        ([-1.0, 100.0], "linear", None),
        ([1.0, 30.0, math.nan], "log", None),
        ([1.0, 3.0, math.inf], "linear", 0.0),
        # All alike: from 0 on they would be one flat line.
        ([0.70, 0.71], "linear", None),
    ],
)
def test_losses_of_any_size_have_an_axis(values, scale, low, axes):
    style.scale_losses(axes, values)
    assert axes.get_yscale() == scale
    assert all(math.isfinite(end) for end in axes.get_ylim())
    if low is not None:
        assert axes.get_ylim()[0] == low


def test_numbers_that_are_not_finite_leave_gaps(axes):
    ends = ([0, -math.inf, math.nan], [2, 2, math.nan])
    style.line(axes, [0, 1, 2], [1, math.inf, math.nan], *ends, "a", style.STYLES["erm"])
    assert np.isfinite(axes.lines[0].get_ydata()).tolist() == [True, False, False]
    style.points(axes, [0, 1, 2], [1, math.inf, 3], *ends, "b", style.STYLES["erm"])
    axes.figure.draw_without_rendering()


@pytest.mark.parametrize(("count", "ticks"), [(1, 1), (12, 12), (24, 12), (32, 11)])
def test_layers_are_numbered_as_far_as_numbers_fit(count, ticks, axes):
    style.layer_ticks(axes, range(1, count + 1))
    shown = axes.get_xticks().tolist()
    assert shown[-1] == count
    assert len(shown) <= ticks
    assert shown == sorted(shown)


def test_variants_have_shades_of_their_objective():
    shades = [style.variant_style("erm", place, 3) for place in range(3)]
    assert shades[0]["color"] == style.STYLES["erm"]["color"].lower()
    brightness = [sum(matplotlib.colors.to_rgb(shade["color"])) for shade in shades]
    assert brightness == sorted(brightness)
    assert {shade["linestyle"] for shade in shades} == {"--"}
    assert len({shade["marker"] for shade in shades}) == 3
    assert style.variant_style("erm", 0, 1) == style.STYLES["erm"]


def test_a_legend_names_each_line_once_and_no_panel_without_lines():
    figure, grid = style.panels(1, 2)
    style.legend_below(figure)
    assert figure.legends == []
    for axes in grid.flat:
        axes.plot([0, 1], label="a")
    style.legend_below(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
    plt.close(figure)
