"""The paper's three trade-off plots, from runs of its recipes that are planted in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.report.collect import ReadRun, collect
from cudt.report.figures import tradeoffs
from cudt.report.groups import Group
from tests.report import make_video_run, with_info
from tests.report.figures import in_groups, named_lines, points_of


def run_of(run: ReadRun, name: str, layers: int, gamma: float, error: float) -> ReadRun:
    """A run of one of cudt's recipes; its RMSE at γ = 0 is given."""
    found, values = recipes.read_named(recipes.locate(name))
    settings = recipes.validate(values, name)
    model = settings.model.model_copy(
        update={"layers": layers} if hasattr(settings.model, "layers") else {}
    )
    changed = settings.model_copy(update={"model": model})
    if run.objective == "erm":
        erm = (settings.published or settings).erm  # type: ignore[union-attr]
        ties = {key.removeprefix("model."): value for key, value in erm.items()}
        changed = changed.model_copy(update={"model": model.model_copy(update=ties)})
    table = run.ood.assign(value=run.ood["value"].where(run.ood["metric"] != "RMSE", error))
    made = with_info(
        run, recipe=found, layers=layers, gamma_train=gamma, variant=f"{layers}-{gamma}"
    )
    return replace(made, run=replace(run.run, recipe=NamedRecipe(found, changed)), ood=table)


@pytest.fixture
def sides(trained_run, tmp_path) -> list[ReadRun]:
    for objective in ("constrained", "erm"):
        make_video_run(trained_run, tmp_path, {0.0: 10.0, 1.0: 20.0}, objective=objective)
    return collect([tmp_path]).runs


def test_each_of_the_papers_settings_has_a_panel_at_its_depth_and_level(sides):
    wanted = (("shanghaitech-ut", 7, 0.09), ("ucsd-vit", 12, 0.13), ("avenue-dust", 7, 0.15))
    others = (("shanghaitech-ut", 5, 0.09), ("shanghaitech-ut", 7, 0.15), ("avenue-dust", 7, 0.0))
    runs = [
        run_of(side, *setting, error)
        for side in sides
        for error, setting in enumerate((*wanted, *others), 1)
    ]
    (plan,) = tradeoffs.FIGURE.over_recipes(by_recipe_of(runs))
    figure, title = plan.draw()
    assert [axes.get_title().splitlines()[:2] for axes in figure.axes] == [
        [name, f"γ_train = {gamma:g}, L = {layers}, 1 seed each"] for name, layers, gamma in wanted
    ]
    for error, axes in enumerate(figure.axes, 1):
        first = {
            name: points_of(line)[0][1]
            for name, line in named_lines(axes).items()
            if name != "noisy input"
        }
        assert first == {"constrained": error, "erm": error}
    assert "in the paper," not in title


def test_runs_that_are_not_the_papers_have_no_panel(sides):
    assert list(tradeoffs.FIGURE.over_recipes([in_groups(sides)])) == []


def by_recipe_of(runs: list[ReadRun]) -> list[list[Group]]:
    names = dict.fromkeys(run.recipe for run in runs)
    return [in_groups([run for run in runs if run.recipe == name]) for name in names]
