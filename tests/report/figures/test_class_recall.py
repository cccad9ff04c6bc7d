from __future__ import annotations

import numpy as np

from cudt.report.figures import class_recall
from tests.report import make_run, plant_recalls
from tests.report.figures import groups_of, legend_of, named_lines, points_of

CURVE = {0.0: 0.8, 2.0: 0.55}


def test_each_class_has_a_panel_with_a_line_for_each_objective(trained_run, tmp_path):
    for objective, recall in (("constrained", 0.2), ("erm", 0.1)):
        for seed in range(2):
            run = make_run(trained_run, tmp_path, CURVE, objective=objective, seed=seed)
            plant_recalls(run, {0.0: (0.8, 0.8), 2.0: (0.9, recall + 0.1 * seed)})
    (plan,) = class_recall.FIGURE.of_recipe(groups_of(tmp_path))
    figure, title = plan.draw()
    assert [axes.get_title() for axes in figure.axes] == ["class 0", "class 1"]
    lines = named_lines(figure.axes[1])
    assert np.allclose(points_of(lines["constrained"]), [[0, 0.8], [2, 0.25]])
    assert np.allclose(points_of(lines["erm"]), [[0, 0.8], [2, 0.15]])
    assert legend_of(figure) == ["constrained", "erm"]
    assert title == "reviews-ut: recall of each class under gaussian noise, 2 seeds"


def test_it_is_not_drawn_without_recalls_or_for_many_classes(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, CURVE)
    assert list(class_recall.FIGURE.of_recipe(groups_of(tmp_path))) == []
    plant_recalls(run, {0.0: (0.5,) * 7, 2.0: (0.5,) * 7})
    assert list(class_recall.FIGURE.of_recipe(groups_of(tmp_path))) == []
