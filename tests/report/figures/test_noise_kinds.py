from __future__ import annotations

import numpy as np

from cudt.report.figures import noise_kinds
from tests.report import make_run
from tests.report.figures import groups_of, named_lines, points_of


def test_each_kind_of_noise_has_a_panel_and_all_have_one_y_axis(trained_run, tmp_path):
    for objective, worst in (("constrained", 0.8), ("erm", 0.5)):
        run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: worst}, objective=objective)
        ood = run.read_table("ood")
        for kind, loss in (("uniform", 0.1), ("discrete", 0.2)):
            more = ood.assign(perturbation=kind, value=ood["value"] - loss)
            run.merge_table("ood", more, ["perturbation", "gamma"])
    figure, title = noise_kinds.draw(groups_of(tmp_path), ["discrete", "gaussian", "uniform"])
    discrete, gaussian, uniform = figure.axes
    assert np.allclose(points_of(named_lines(gaussian)["erm"]), [[0, 0.9], [1, 0.5]])
    assert np.allclose(points_of(named_lines(uniform)["erm"]), [[0, 0.8], [1, 0.4]])
    assert np.allclose(points_of(named_lines(discrete)["constrained"]), [[0, 0.7], [1, 0.6]])
    assert discrete.get_ylim() == gaussian.get_ylim() == uniform.get_ylim()
    assert "$p$" in discrete.get_xlabel()
    assert title == "reviews-ut: accuracy under discrete, gaussian, uniform noise, 1 seed"
