from __future__ import annotations

import pytest

from cudt.report.figures import grid
from cudt.report.groups import by_recipe
from tests.report import make_run
from tests.report.figures import groups_of, points_of


def test_recipes_with_one_model_and_data_set_have_a_panel_each(trained_run, tmp_path):
    for index in range(5):
        make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.1 * index}, name=f"$x_{index}$")
    recipes = [[group] for group in groups_of(tmp_path)]
    figure, title = grid.draw(recipes, "gaussian")
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title().splitlines()[0] for axes in panels] == [rf"\$x_{index}\$" for index in range(5)]
    assert [points_of(axes.lines[0])[1][1] for axes in panels] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert title.startswith("accuracy under gaussian noise, by recipe, 1 seed per line")
    figure.draw_without_rendering()


def test_sections_of_one_recipe_have_titles_of_their_own(trained_run, tmp_path):
    for select in ("best", "last"):
        make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.5}, overrides=[f"training.select={select}"])
    figure, _ = grid.draw([*by_recipe(groups_of(tmp_path)).values()], "gaussian")
    titles = [axes.get_title().splitlines()[0] for axes in figure.axes if axes.axison]
    assert titles == ["reviews-ut, select=best", "reviews-ut, select=last"]


def test_models_are_in_rows_and_data_sets_in_columns(trained_run, tmp_path, monkeypatch):
    for task in "ab":
        for model in "cd":
            make_run(trained_run, tmp_path, {0.0: 1.0}, name=f"{task}-{model}")
    monkeypatch.setattr(grid, "task_name", lambda group: group.recipe[0])
    monkeypatch.setattr(grid, "model_name", lambda group: group.recipe[-1])
    ((_, sharing),) = grid.sharing_a_metric([[group] for group in groups_of(tmp_path)]).items()
    figure, _ = grid.draw(sharing, "gaussian")
    titles = [axes.get_title().splitlines()[0] for axes in figure.axes]
    assert titles == ["a, c", "b, c", "a, d", "b, d"]
    # Only the panels on the left and at the bottom name their axes.
    assert [bool(axes.get_ylabel()) for axes in figure.axes] == [True, False, True, False]
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False, False, True, True]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([("m", "a"), ("m", "b")], True),
        ([("m", "a"), ("n", "b")], True),
        ([("m", "a"), ("m", "a")], False),
        ([("m", "a"), ("n", "b"), ("o", "c")], False),
        ([(str(model), "a") for model in range(7)], False),
    ],
)
def test_a_matrix_is_drawn_if_at_least_half_of_its_cells_occur_each_once(cells, expected):
    assert grid.fills_matrix(cells) == expected


def test_a_grid_is_at_the_papers_gamma_train_and_says_which_recipes_are_not(trained_run, tmp_path):
    for name, gamma in (("a", 0.8), ("a", 1.0), ("b", 0.5)):
        make_run(
            trained_run, tmp_path, {0.0: 1.0}, name=name, gamma_train=gamma, overrides=[f"noise.gamma_train={gamma}"]
        )
    groups = groups_of(tmp_path)
    recipes = [[group for group in groups if group.recipe == name] for name in "ab"]
    figure, title = grid.draw(recipes, "gaussian")
    assert [axes.get_title().splitlines()[1].split(",")[0] for axes in figure.axes] == [
        "γ_train = 0.8",
        "γ_train = 0.5",
    ]
    rule = "each objective at its best depth on validation data"
    assert title.endswith(f"(γ_train = 0.8 as in the paper, except b, without runs at it; {rule})")
    _, alone = grid.draw(recipes[1:], "gaussian")
    assert alone.endswith(f"({rule}, at the highest γ_train of each recipe; the paper's figure has 0.8)")
