from __future__ import annotations

import numpy as np
import pytest

from cudt.report.collect import collect
from cudt.report.figures import curves
from tests.report import make_run
from tests.report.figures import groups_of, in_groups, legend_of, named_lines, points_of, variant_of


def test_each_kind_of_noise_has_a_panel_with_the_same_height(trained_run, tmp_path, drawn):
    for objective, worst in (("constrained", 0.8), ("erm", 0.5)):
        run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: worst}, objective=objective)
        ood = run.read_table("ood")
        for kind, loss in (("uniform", 0.1), ("discrete", 0.2)):
            more = ood.assign(perturbation=kind, value=ood["value"] - loss)
            run.merge_table("ood", more, ["perturbation", "gamma"])
    made = curves.noise_kinds(groups_of(tmp_path), ["discrete", "gaussian", "uniform"], tmp_path / "stem")
    discrete, gaussian, uniform = drawn[0].axes
    assert np.allclose(points_of(named_lines(gaussian)["erm"]), [[0, 0.9], [1, 0.5]])
    assert np.allclose(points_of(named_lines(uniform)["erm"]), [[0, 0.8], [1, 0.4]])
    assert np.allclose(points_of(named_lines(discrete)["constrained"]), [[0, 0.7], [1, 0.6]])
    assert discrete.get_ylim() == gaussian.get_ylim() == uniform.get_ylim()
    assert "$p$" in discrete.get_xlabel()
    assert made.title == "reviews-ut: accuracy under discrete, gaussian, uniform noise, 1 seed"


def test_each_level_of_training_has_a_panel(trained_run, tmp_path, drawn):
    for gamma in (0.0, 0.4):
        for objective in ("constrained", "erm"):
            curve = {0.0: 0.9, 1.0: gamma + (objective == "erm")}
            overrides = [f"noise.gamma_train={gamma}"]
            make_run(trained_run, tmp_path, curve, objective=objective, overrides=overrides, gamma_train=gamma)
    groups = groups_of(tmp_path)
    curves.training_levels(groups, "gaussian", tmp_path / "stem")
    for axes, gamma in zip(drawn[0].axes, (0.0, 0.4), strict=True):
        lines = named_lines(axes)
        assert points_of(lines["constrained"])[1] == pytest.approx([1, gamma])
        assert points_of(lines["erm"])[1] == pytest.approx([1, gamma + 1])
        assert axes.get_title().startswith(f"γ_train = {gamma:g}, L = 3")
        # The levels of training are shaded, where there are any.
        assert [text.get_text() for text in axes.texts] == (["ID"] if gamma else [])
    assert legend_of(drawn[0]) == ["constrained", "erm"]


def test_of_many_levels_of_training_some_are_shown_from_the_lowest_to_the_highest(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 1.0})
    (run,) = collect([tmp_path]).runs
    runs = [variant_of(run, f"{place:08}", {}, gamma_train=place / 10) for place in range(20)]
    levels = curves.levels_of_training(in_groups(runs), "gaussian")
    assert len(levels) == len(set(levels)) == 9
    assert (levels[0], levels[-1]) == (0.0, 1.9)


def test_recipes_that_share_a_place_each_have_a_panel(trained_run, tmp_path, drawn):
    for place in range(5):
        make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.1 * place}, name=f"$x_{place}$")
    recipes = [[group] for group in groups_of(tmp_path)]
    made = curves.robustness_grid(recipes, "gaussian", tmp_path / "stem")
    panels = [axes for axes in drawn[0].axes if axes.axison]
    assert [axes.get_title().splitlines()[0] for axes in panels] == [rf"\$x_{place}\$" for place in range(5)]
    assert [points_of(axes.lines[0])[1][1] for axes in panels] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert made.recipe == ""
    assert made.title.startswith("accuracy under gaussian noise, by recipe, 1 seed a line")
    drawn[0].draw_without_rendering()


def test_models_stand_in_rows_and_data_sets_in_columns(trained_run, tmp_path, drawn, monkeypatch):
    for task in "ab":
        for model in "cd":
            make_run(trained_run, tmp_path, {0.0: 1.0}, name=f"{task}-{model}")
    monkeypatch.setattr(curves, "task_name", lambda group: group.recipe[0])
    monkeypatch.setattr(curves, "model_name", lambda group: group.recipe[-1])
    ((_, sharing),) = curves.sharing_a_metric([[group] for group in groups_of(tmp_path)]).items()
    curves.robustness_grid(sharing, "gaussian", tmp_path / "stem")
    titles = [axes.get_title().splitlines()[0] for axes in drawn[0].axes]
    assert titles == ["a, c", "b, c", "a, d", "b, d"]
    # Names of axes stand on the left and below alone.
    assert [bool(axes.get_ylabel()) for axes in drawn[0].axes] == [True, False, True, False]
    assert [bool(axes.get_xlabel()) for axes in drawn[0].axes] == [False, False, True, True]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("m", "a"), ("m", "b")], True),
        ([("m", "a"), ("n", "b")], True),
        ([("m", "a"), ("m", "a")], False),
        ([("m", "a"), ("n", "b"), ("o", "c")], False),
        ([(str(model), "a") for model in range(7)], False),
    ],
)
def test_a_grid_is_drawn_where_most_of_its_places_are_taken_once(places, expected):
    assert curves.is_matrix(places) == expected
