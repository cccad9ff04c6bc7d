"""Which figures are drawn for which runs, and figures that come from outside cudt."""

from __future__ import annotations

from typing import Any

import matplotlib.colors
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from cudt.report import figures, objectives
from cudt.utils.errors import UserError
from tests.report import make_run, make_video_run
from tests.report.figures import draw, groups_of

CURVE = {0.0: 0.9, 1.0: 0.8}
#: The figures of every recipe with evaluated runs.
ALWAYS = ["gaussian-descent-and-robustness", "gaussian-layer-ratios", "errors-over-layers"]


def share_of(colour: str, picture: np.ndarray[Any, Any]) -> float:
    """The share of a picture's pixels that have a colour."""
    wanted = np.array(matplotlib.colors.to_rgb(colour))
    return float((np.abs(picture[..., :3] - wanted).max(-1) < 0.02).mean())


def names(folder, **options) -> list[str]:
    return [figure.png.stem for figure in draw(groups_of(folder), folder / "figures", **options)]


def test_a_figure_is_a_png_and_a_pdf_with_the_lines_of_both_objectives(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", CURVE, feasible=True)
    other: dict[str, Any] = {
        "objective": "erm",
        "losses": (0.9, 0.8, 0.4),
        "steps": (0.2, 0.7, 0.1),
    }
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9, 1.0: 0.5}, **other)
    made = draw(groups_of(tmp_path / "runs"), tmp_path / "figures")
    assert [figure.png.stem for figure in made] == [
        *(f"reviews-ut-{name}" for name in ALWAYS),
        "average-descent",
    ]
    assert [figure.recipe for figure in made] == ["reviews-ut"] * 3 + [""]
    for figure in made[:2]:
        assert figure.png.parent == figure.pdf.parent == tmp_path / "figures"
        assert figure.pdf.read_bytes().startswith(b"%PDF-")
        assert figure.pdf.stat().st_size > 5_000
        picture = matplotlib.image.imread(figure.png)
        assert picture.shape[1] > 1000
        for objective in ("constrained", "erm"):
            assert share_of(objectives.style(objective)["color"], picture) > 1e-3
        assert share_of(objectives.style("supervised")["color"], picture) == 0
    assert len(list((tmp_path / "figures").iterdir())) == 8
    assert plt.get_fignums() == []


def test_each_recipe_and_noise_has_its_figures(trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path / "a", CURVE, feasible=True)
    make_run(trained_run, tmp_path / "b", CURVE, objective="erm", kind="uniform")
    make_run(trained_run, tmp_path / "c", CURVE, name="<b> other", feasible=True)
    make_run(trained_run, tmp_path / "d", CURVE, name="_b_other", feasible=True)
    kinds = [
        "uniform-descent-and-robustness",
        "uniform-layer-ratios",
        "errors-over-layers",
        "noise-kinds",
    ]
    assert names(tmp_path) == [
        *(f"_b_other-{name}" for name in ALWAYS),
        *(f"_b_other-2-{name}" for name in ALWAYS),
        *(f"reviews-ut-{name}" for name in [*ALWAYS[:2], *kinds]),
        "grid-accuracy-gaussian",
        "average-descent",
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("losses", "curve"),
    [
        ([0.5], {0.0: 0.5}),
        ([float("nan")] * 3, {0.7: 0.0}),
        ([float("inf"), 1.0], {0.0: float("nan"), 1.0: float("inf")}),
        ([-1.0, -2.0], {0.0: -5.0, 1e9: 0.5}),
        ([0.0, 0.0], {0.0: 0.0, 1.0: 0.0}),
    ],
)
def test_unusual_values_are_drawn(losses, curve, trained_run, tmp_path, drawn):
    make_run(trained_run, tmp_path, curve, losses=losses, feasible=True)
    make_run(
        trained_run, tmp_path, {0.0: 0.5, 3.0: 0.1}, losses=losses, objective="erm", reference=0.0
    )
    assert len(names(tmp_path)) >= 3
    for figure in drawn:
        figure.draw_without_rendering()


def test_recipes_with_the_same_metric_share_a_grid(trained_run, tmp_path, drawn):
    for name in "ab":
        make_run(trained_run, tmp_path, CURVE, name=name, feasible=True)
        make_video_run(trained_run, tmp_path, {0.0: 9.0}, name=f"video-{name}", feasible=True)
    grids = [name for name in names(tmp_path) if name.startswith("grid")]
    assert grids == ["grid-accuracy-gaussian", "grid-RMSE-gaussian"]


OUTSIDE = """
from functools import partial

from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.panels import panels


def draw(words):
    figure, grid = panels(1, 1)
    grid[0, 0].set_title(words)
    return Drawing(figure, f"about {words}")


class Toy(FigureType):
    name = "NAME"
    order = 15

    def of_recipe(self, groups):
        yield FigurePlan(self.name, partial(draw, groups[0].recipe))

    def over_recipes(self, recipes):
        yield FigurePlan(f"{self.name}-over-all", partial(draw, f"{len(recipes)} recipe"))


FIGURE = Toy()
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A package with figures outside cudt: `toy`, one that takes the name of another, and one that
    is no figure."""
    package = tmp_path / "outside_figures"
    package.mkdir()
    (package / "toy.py").write_text(OUTSIDE.replace("NAME", "toy"))
    (package / "taken.py").write_text(OUTSIDE.replace("NAME", "grid"))
    (package / "text.py").write_text("FIGURE = 'toy'")
    (package / "empty.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_figure_from_outside_is_drawn_in_its_order(trained_run, tmp_path, drawn, outside):
    make_run(trained_run, tmp_path / "runs", CURVE, feasible=True)
    make_run(trained_run, tmp_path / "runs", CURVE, seed=1, feasible=True)
    assert names(tmp_path / "runs", extra=["outside_figures.toy", "outside_figures.toy"]) == [
        *(f"reviews-ut-{name}" for name in [*ALWAYS[:2], "toy", ALWAYS[2]]),
        *("toy-over-all", "average-descent"),
    ]
    assert [axes.get_title() for axes in drawn[2].axes] == ["reviews-ut"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "outside_figures.nobody",
            "no Python module 'outside_figures.nobody'; install its package",
        ),
        ("outside_figures.empty", "does not define `FIGURE`"),
        (
            "outside_figures.text",
            r"text.py: `FIGURE` must be an instance of a subclass of .*\.base\.FigureType",
        ),
        ("outside_figures.taken", "taken.py: another figure is named 'grid'; rename it"),
        ("gird", "unknown figure 'gird'.*grid"),
    ],
)
def test_what_is_wrong_with_a_figure_from_outside_is_an_error(path, message, outside):
    with pytest.raises(UserError, match=message):
        figures.figure_types([path])
