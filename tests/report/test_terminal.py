from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from cudt.evaluation.display import curve_table, ratio_table
from cudt.report import tables
from cudt.report.collect import collect
from cudt.report.terminal import summary_table
from tests.report import GAMMA_TRAIN, make_run

CURVE = {0.0: 1.0, GAMMA_TRAIN: 0.8, 1.0: 0.5}


def lines(table: Table) -> list[str]:
    """A table's lines on a terminal of eighty columns, gaps narrowed."""
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    found = output.getvalue().splitlines()
    assert max(map(len, found)) <= 80
    return [" ".join(line.split()) for line in found]


def test_a_curve_has_a_row_for_each_level_and_its_area(trained_run, tmp_path):
    shown = lines(curve_table(make_run(trained_run, tmp_path, CURVE)))
    assert shown[1] == "noise level accuracy 95 % interval loss"
    assert shown[2:] == [
        "gaussian γ = 0 ID 1.0000 0.9500 to 1.0500 0.0000",
        "gaussian γ = 0.4 ID 0.8000 0.7500 to 0.8500 0.2000",
        "gaussian γ = 1 OOD 0.5000 0.4500 to 0.5500 0.5000",
        "gaussian AUC 0.7500 over γ 0 to 1",
    ]


def test_ratios_are_shown_over_all_layers_at_each_level(trained_run, tmp_path):
    shown = lines(ratio_table(make_run(trained_run, tmp_path, CURVE, steps=(0.625, 0.25, 0.125))))
    assert shown[-2] == "noise level mean f_l / f_l−1 median steps that lower the loss"
    assert shown[-1] == "gaussian γ = 0.4 0.800 0.750 62.5%"


@pytest.mark.parametrize("name", ["reviews-ut", "a-recipe-with-a-rather-long-name"])
def test_the_summary_fits_eighty_columns_with_every_number_whole(name, trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, name=name, feasible=True)
    make_run(trained_run, tmp_path, CURVE, name=name, objective="supervised")
    shown = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    text = "\n".join(shown)
    for part in ("1 of 1", "0 of 1", "0.9000", "0.5000", "0.7500", "gaussian", "supervised"):
        assert part in text
    # A long name may break over lines.
    assert name[:8] in text
