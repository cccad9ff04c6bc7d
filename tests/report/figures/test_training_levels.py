from __future__ import annotations

import pytest

from cudt.report.figures import training_levels
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of


def test_each_gamma_train_has_a_panel(trained_run, tmp_path):
    for gamma in (0.0, 0.4):
        for objective in ("constrained", "erm"):
            curve = {0.0: 0.9, 1.0: gamma + (objective == "erm")}
            overrides = [f"noise.gamma_train={gamma}"]
            make_run(
                trained_run,
                tmp_path,
                curve,
                objective=objective,
                overrides=overrides,
                gamma_train=gamma,
            )
    groups = groups_of(tmp_path)
    figure, _ = training_levels.draw(groups, "gaussian")
    for axes, gamma in zip(figure.axes, (0.0, 0.4), strict=True):
        lines = named_lines(axes)
        assert points_of(lines["constrained"])[1] == pytest.approx([1, gamma])
        assert points_of(lines["erm"])[1] == pytest.approx([1, gamma + 1])
        assert axes.get_title().startswith(f"γ_train = {gamma:g}, L = 3")
        # The levels seen in training are shaded.
        assert [text.get_text() for text in axes.texts] == (["ID"] if gamma else [])
    assert legend_of(figure) == ["constrained", "erm"]


@pytest.mark.parametrize("other", ["model.layers=8", "descent.form=ladder", "descent.alpha=0.3"])
def test_all_panels_have_the_depth_and_the_constraints_that_were_trained_at_most_levels(
    other, trained_run, tmp_path
):
    """Depth 3 and the paper's constraints have two levels; what is deeper, or of another kind, has
    one."""
    trained = [
        (objective, gamma, ()) for objective in ("constrained", "erm") for gamma in (0.0, 0.4)
    ]
    for objective, gamma, more in [*trained, ("constrained", 0.4, (other,))]:
        depth = 8 if other in more and "layers" in other else 3
        make_run(
            trained_run,
            tmp_path,
            {0.0: 0.9, 1.0: 0.5},
            objective=objective,
            losses=[0.1 if more else 0.5] * depth,
            overrides=[f"noise.gamma_train={gamma}", *more],
            gamma_train=gamma,
        )
    ((_, draw),) = (
        (plan.name, plan.draw) for plan in training_levels.FIGURE.of_recipe(groups_of(tmp_path))
    )
    figure, _ = draw()
    assert [axes.get_title().split(", ")[:2] for axes in figure.axes] == [
        ["γ_train = 0", "L = 3"],
        ["γ_train = 0.4", "L = 3"],
    ]
    assert legend_of(figure) == ["constrained", "erm"]
