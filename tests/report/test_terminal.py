from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from cudt.report import tables
from cudt.report.collect import collect
from cudt.report.terminal import curve_table, summary_table
from tests.report import GAMMA_TRAIN, make_run

CURVE = {0.0: 1.0, GAMMA_TRAIN: 0.8, 1.0: 0.5}


def lines(table: Table) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    found = output.getvalue().splitlines()
    assert max(map(len, found)) <= 80
    return found


def test_a_curve_has_a_row_for_each_level_and_its_area(trained_run, tmp_path):
    shown = [line.split() for line in lines(curve_table(make_run(trained_run, tmp_path, CURVE)))]
    assert shown[1] == ["noise", "γ", "accuracy", "loss"]
    assert shown[2:] == [
        ["gaussian", "0", "ID", "1.0000", "0.0000"],
        ["gaussian", "0.4", "ID", "0.8000", "0.2000"],
        ["gaussian", "1", "OOD", "0.5000", "0.5000"],
        ["gaussian", "0", "to", "1", "AUC", "0.7500"],
    ]


def test_a_curve_averages_noise_seeds(trained_run, tmp_path):
    shown = lines(curve_table(make_run(trained_run, tmp_path, {0.0: [1.0, 0.5]})))
    assert shown[2].split() == ["gaussian", "0", "ID", "0.7500", "0.2500"]


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


def test_the_caption_of_the_summary_says_what_the_numbers_are(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    caption = lines(summary_table(tables.summary(collect([tmp_path]).runs)))[-1].strip()
    assert caption == "mean accuracy over γ ≤ γ_train (ID) and above (OOD); AUC over γ 0 to 1"


def test_a_run_without_a_curve_has_blanks_in_the_summary(trained_run, tmp_path):
    make_run(trained_run, tmp_path)
    shown = lines(summary_table(tables.summary(collect([tmp_path]).runs)))
    assert shown[1].split() == ["reviews-ut", "constrained", "0", "of", "1", "0", "of", "1"]
    assert "nan" not in "\n".join(shown)
