from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cudt.report.figures import errors_over_layers
from cudt.runs.tables import TABLES
from tests.report import make_run
from tests.report.figures import groups_of, points_of


def test_errors_are_drawn_clean_at_the_training_level_and_at_the_highest_level(
    trained_run, tmp_path
):
    for seed in range(2):
        run = make_run(trained_run, tmp_path, {0.0: 1.0, 2.0: 0.8}, seed=seed)
        rows = [
            ("test", "gaussian", gamma, layer, 0.5, 0.9 - 0.1 * gamma - 0.2 * seed / layer)
            for gamma in (0.0, 0.4, 1.0, 2.0)
            for layer in (1, 2, 3)
        ]
        run.merge_table(
            "layers", pd.DataFrame(rows, columns=TABLES["layers"]), TABLES["layers"][:4]
        )
    figure, title = errors_over_layers.draw(groups_of(tmp_path), "gaussian")
    titles = ["γ = 0", "γ = 0.4 (γ_train)", "γ = 2"]
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes, gamma in zip(figure.axes, (0.0, 0.4, 2.0), strict=True):
        wanted = [[layer, 0.1 + 0.1 * gamma + 0.1 / layer] for layer in (1, 2, 3)]
        assert np.allclose(points_of(axes.lines[0]), wanted)
        band = axes.collections[0].get_datalim(axes.transData)
        assert band.ymax == pytest.approx(wanted[0][1] + 0.1 * 2**0.5)
    assert title == "reviews-ut: 1 − accuracy over layers under gaussian noise, 2 seeds"
