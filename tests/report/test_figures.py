from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.colors
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from cudt.report import figures, tables
from cudt.report.collect import collect
from cudt.runs import TABLES
from tests.report import REACH, make_run, make_video_run


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.fixture
def unsaved(monkeypatch):
    """Figures are drawn, but not written to disk: that takes most of the time."""

    def close(figure: Any, recipe: str, title: str, stem: Path) -> figures.Figure:
        plt.close(figure)
        return figures.Figure(recipe, title, stem, stem)

    monkeypatch.setattr(figures, "save", close)


def share_of(colour: str, picture: np.ndarray) -> float:
    """The share of a picture's pixels that have a colour."""
    wanted = np.array(matplotlib.colors.to_rgb(colour))
    return float((np.abs(picture[..., :3] - wanted).max(-1) < 0.02).mean())


def test_a_figure_is_a_png_and_a_pdf_with_the_lines_of_both_objectives(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9, 1.0: 0.8})
    other: dict[str, Any] = {"objective": "erm", "losses": (0.9, 0.8, 0.4), "steps": (0.2, 0.7, 0.1)}
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9, 1.0: 0.5}, **other)
    made = figures.draw_all(collect([tmp_path / "runs"]).runs, tmp_path / "figures")
    assert len(made) == 2
    for figure in made:
        assert figure.recipe == "reviews-ut"
        assert figure.png.parent == figure.pdf.parent == tmp_path / "figures"
        assert figure.pdf.read_bytes().startswith(b"%PDF-")
        assert figure.pdf.stat().st_size > 5_000
        picture = matplotlib.image.imread(figure.png)
        assert picture.shape[1] > 1000
        for objective in ("constrained", "erm"):
            assert share_of(figures.STYLES[objective]["color"], picture) > 1e-3
        assert share_of(figures.STYLES["supervised"]["color"], picture) == 0


def test_each_recipe_and_noise_has_its_figures(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "a", {0.0: 0.9})
    make_run(trained_run, tmp_path / "b", {0.0: 0.9}, objective="erm", kind="uniform")
    make_run(trained_run, tmp_path / "c", {0.0: 0.9}, name="<b>/other")
    made = figures.draw_all(collect([tmp_path]).runs, tmp_path / "figures")
    assert [figure.png.name for figure in made] == [
        f"{stem}-{name}.png"
        for stem in ("_b_other-gaussian", "reviews-ut-gaussian", "reviews-ut-uniform")
        for name in ("descent-and-robustness", "layer-ratios")
    ]
    assert len(list((tmp_path / "figures").iterdir())) == 12
    assert plt.get_fignums() == []


def test_runs_without_curves_have_no_figure(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs")
    assert figures.draw_all(collect([tmp_path / "runs"]).runs, tmp_path / "figures") == []


def test_curves_are_means_with_a_band_over_seeds(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, {0.0: 0.8, 1.0: 0.4}, seed=1)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.3}, objective="erm")
    figures._draw_curves(axes, "gaussian", collect([tmp_path]).runs)
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines) == {"constrained (2 seeds)", "erm (1 seed)"}
    assert np.allclose(lines["constrained (2 seeds)"].get_xydata(), [[0, 0.9], [1, 0.6]])
    assert np.allclose(lines["erm (1 seed)"].get_xydata(), [[0, 0.9], [1, 0.3]])
    assert lines["constrained (2 seeds)"].get_linestyle() == "-"
    assert lines["erm (1 seed)"].get_linestyle() == "--"
    over_seeds, over_examples = (band.get_datalim(axes.transData) for band in axes.collections)
    # One standard deviation of 0.8 and 0.4 about 0.6; of a single seed, its interval.
    assert over_seeds.ymin == pytest.approx(0.6 - 0.2 * 2**0.5)
    assert (over_examples.ymin, over_examples.ymax) == pytest.approx((0.3 - REACH, 0.9 + REACH))


def test_a_single_seed_without_interval_has_no_band(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, old=True)
    runs = collect([tmp_path]).runs
    figures._draw_curves(axes, "gaussian", runs)
    figures._draw_layer_losses(axes, "gaussian", runs)
    assert not axes.collections


@pytest.mark.filterwarnings("error")
def test_levels_that_no_two_seeds_share_make_no_figure(trained_run, tmp_path, unsaved):
    make_run(trained_run, tmp_path, {0.5: 1.0}, seed=0)
    make_run(trained_run, tmp_path, {1.0: 0.8}, seed=1)
    make_run(trained_run, tmp_path, {0.0: 0.8}, objective="erm", kind="uniform")
    made = figures.draw_all(collect([tmp_path]).runs, tmp_path / "figures")
    assert [figure.png.name.split("-")[2] for figure in made] == ["uniform", "uniform"]


def test_ratios_are_drawn_as_density_and_distribution(trained_run, tmp_path, monkeypatch):
    make_run(trained_run, tmp_path, {0.0: 1.0}, steps=(0.5, 0.25, 0.25))
    make_run(trained_run, tmp_path, {0.0: 1.0}, objective="erm", old=True)
    runs = collect([tmp_path]).runs
    shown: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, *_: shown.extend(figure.axes))
    figures.layer_ratios("reviews-ut", "gaussian", runs, tables.ratio_bins(runs), tmp_path)
    density, distribution = shown
    (stairs,) = density.patches
    # Half of the steps below 1, a quarter from 1 to 2; what is above 2 has no end.
    assert stairs.get_data().values.tolist() == [0.5, 0.25]
    assert stairs.get_data().edges.tolist() == [0, 1, 2]
    assert distribution.lines[0].get_xydata().tolist() == [[0, 0], [1, 0.5], [2, 0.75]]
    assert [text.get_text() for text in density.get_legend().get_texts()] == ["constrained (1 seed)"]
    plt.close(density.figure)


@pytest.mark.parametrize("missing", ["", ",".join(TABLES["ratio_bins"]) + "\n"], ids=["no file", "no rows"])
def test_a_run_without_ratios_does_not_keep_others_from_being_drawn(missing, trained_run, tmp_path, unsaved):
    run = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, objective="erm")
    bare = make_run(trained_run, tmp_path / "a", {0.0: 1.0}, objective="supervised", old=True)
    if missing:
        (bare.path / "ratio_bins.csv").write_text(missing)
    runs = collect([bare.path, run.path]).runs
    assert len(figures.draw_all(runs, tmp_path / "figures")) == 2
    assert len(figures.draw_all(collect([bare.path]).runs, tmp_path / "figures")) == 1


@pytest.mark.parametrize(("kind", "level"), [("gaussian", "γ = 0.4"), ("discrete", "p = 0")])
def test_a_title_says_at_which_level_layers_are_compared(kind, level, trained_run, tmp_path, unsaved):
    make_run(trained_run, tmp_path, {0.0: 1.0, 0.5: 0.8}, kind=kind)
    _, ratios = figures.draw_all(collect([tmp_path]).runs, tmp_path / "figures")
    assert ratios.title == f"reviews-ut: layer ratios per example, {level} of {kind} noise"


def test_layer_losses_are_those_of_the_test_split_at_the_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, losses=(0.6, 0.5, 0.4))
    figures._draw_layer_losses(axes, "gaussian", collect([tmp_path]).runs)
    line, reference = axes.lines
    assert np.allclose(line.get_xydata(), [[1, 0.6], [2, 0.5], [3, 0.4]])
    assert reference.get_ydata()[0] == trained_run.info()["reference"]


def test_a_label_counts_the_seeds_that_are_drawn(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, None, seed=1)
    make_run(trained_run, tmp_path, None, objective="erm")
    figures._draw_curves(axes, "gaussian", collect([tmp_path]).runs)
    assert [line.get_label() for line in axes.lines] == ["constrained (1 seed)"]


def test_variants_of_an_objective_are_told_apart(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path / "a", {0.0: 1.0, 1.0: 0.8}, variant="aaaa")
    make_run(trained_run, tmp_path / "b", {0.0: 1.0, 1.0: 0.4}, variant="bbbb")
    figures._draw_curves(axes, "gaussian", collect([tmp_path]).runs)
    assert [line.get_label() for line in axes.lines] == ["constrained aaaa (1 seed)", "constrained bbbb (1 seed)"]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}) == 2


def test_each_variant_is_drawn_at_its_own_training_level(trained_run, tmp_path, axes):
    make_run(trained_run, tmp_path / "a", {0.0: 1.0}, variant="aaaa")
    other = make_run(trained_run, tmp_path / "b", {0.0: 1.0}, variant="bbbb", gamma_train=0.2)
    layers = other.read_table("layers")
    other.write_table("layers", layers.assign(gamma=0.2))
    figures._draw_layer_losses(axes, "gaussian", collect([tmp_path]).runs)
    assert all(len(line.get_xydata()) == 3 for line in axes.lines[:2])


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ((2e5, 9e4, 2.1e4), "linear"),
        ((4e5, 9e4, 1.9e4), "log"),
        ((4e5, 9e4, 0.0), "linear"),
        # Far below f_0 already, in every layer.
        ((10.0, 9.0, 8.0), "log"),
    ],
)
def test_losses_that_differ_many_times_have_a_logarithmic_axis(losses, scale, trained_run, tmp_path, axes):
    make_video_run(trained_run, tmp_path, {0.0: 10.0}, losses=losses, reference=4e5)
    figures._draw_layer_losses(axes, "gaussian", collect([tmp_path]).runs)
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low <= min(losses)
    assert high >= 4e5
    assert (low == 0) == (scale == "linear")


def test_the_training_levels_are_named_where_the_curve_is_not(trained_run, tmp_path, axes):
    figures._draw_curves(axes, "gaussian", collect([make_run(trained_run, tmp_path / "a", {0.0: 0.9}).path]).runs)
    figures._draw_curves(axes, "gaussian", collect([make_video_run(trained_run, tmp_path / "b", {0.0: 9}).path]).runs)
    below, above = (text.get_position()[1] for text in axes.texts)
    assert below < 0.1
    assert above > 0.9
    assert axes.get_ylabel() == "test RMSE"
