from __future__ import annotations

import pytest

from cudt.report.figures import grid
from tests.report import make_run
from tests.report.figures import groups_of, points_of


def test_recipes_with_one_model_and_data_set_have_a_panel_each(trained_run, tmp_path):
    for index in range(5):
        make_run(trained_run, tmp_path, {0.0: 1.0, 1.0: 0.1 * index}, name=f"$x_{index}$")
    recipes = [[group] for group in groups_of(tmp_path)]
    figure, title = grid.draw(recipes, "gaussian")
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title().splitlines()[0] for axes in panels] == [
        rf"\$x_{index}\$" for index in range(5)
    ]
    assert [points_of(axes.lines[0])[1][1] for axes in panels] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4]
    )
    assert title.startswith("accuracy under gaussian noise, by recipe, 1 seed per line")
    figure.draw_without_rendering()


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
