"""The paper's numbers, which were typed in: their shape always, each against the paper's source
where that is there."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cudt.report import paper

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_paper_numbers.py"


@pytest.fixture(scope="module")
def check() -> Any:
    """scripts/check_paper_numbers.py."""
    spec = importlib.util.spec_from_file_location("check_paper_numbers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_number_is_that_of_the_papers_source(check):
    source = os.environ.get("CUDT_PAPER_SOURCE")
    if not source:
        pytest.skip("CUDT_PAPER_SOURCE does not name the LaTeX source of arXiv 2601.17257")
    assert check.differences(Path(source).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("name", "count"), [("rmse.csv", 210), ("accuracy_auc.csv", 144)])
def test_every_cell_has_one_value_of_each_objective_and_the_better_one_is_bold(name, count):
    table = pd.read_csv(paper.folder() / name)
    assert len(table) == count
    assert (table["value"] > 0).all()
    lower_is_better = name == "rmse.csv"
    for cell, pair in table.groupby(["model", "layers", "gamma_train", "dataset"]):
        assert sorted(pair["objective"]) == ["constrained", "erm"], cell
        ranked = pair.sort_values("value", ascending=lower_is_better)
        is_tied = pair["value"].nunique() == 1
        assert is_tied or (ranked["bold"] == "yes").tolist() == [True, False], cell
