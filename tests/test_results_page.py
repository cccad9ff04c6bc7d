"""scripts/results_page.py, and docs/results.md as it is: every table of the page is what results/tables/ says."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pandas as pd
import pytest

from tests.test_dinov2_weights import SCRIPTS

PAGE = SCRIPTS.parent / "docs" / "results.md"


@pytest.fixture
def results_page(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("results_page")


@pytest.fixture
def tables(tmp_path):
    """Two groups of a recipe and one of another, with a difference between the first two."""
    shared = {
        "metric": "accuracy",
        "perturbation": "gaussian",
        "gamma_train": 0.4,
        "range": "γ 0 to 2.1",
        "evaluated": 3,
    }
    rows = [
        {"recipe": "a", "objective": "constrained", "variant": "x1", "label": "constrained α=0.1", "auc": 1.6},
        {"recipe": "a", "objective": "erm", "variant": "x0", "label": "erm", "auc": 1.5},
        {"recipe": "b", "objective": "erm", "variant": "x2", "label": "erm", "auc": 1.0},
    ]
    pd.DataFrame([{**shared, "id_mean": 0.8, "ood_mean": 0.7, **row} for row in rows]).to_csv(tmp_path / "table.csv")
    pair = {**rows[0], "against": "erm", "quantity": "ood_mean", "gamma_train": 0.4, "perturbation": "gaussian"}
    pd.DataFrame([{**pair, "difference": 0.02, "low": 0.01, "high": 0.03}]).to_csv(tmp_path / "paired.csv")
    return tmp_path


@pytest.mark.parametrize(("name", "n_tables"), [("docs/results.md", 4), ("README.md", 1)])
def test_the_page_is_what_the_tables_say(name, n_tables, results_page):
    page = (SCRIPTS.parent / name).read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= n_tables
    assert "No runs yet" not in page
    assert results_page.rendered(page) == page


def test_every_figure_of_the_page_exists():
    found = re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert found
    assert [name for name in found if not (PAGE.parent / name).is_file()] == []


def test_groups_are_compared(results_page, tables):
    page = "before\n\n<!-- compare: recipe=a gamma_train=0.4 -->\nold\n<!-- end -->\nafter\n"
    made = results_page.rendered(page, tables).splitlines()
    assert made[:4] == ["before", "", "<!-- compare: recipe=a gamma_train=0.4 -->", ""]
    assert made[4:8] == [
        "| runs | seeds | ID | OOD | AUC, γ 0 to 2.1 | OOD − erm | OOD − supervised |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| erm | 3 | 0.800 | 0.700 | 1.500 |  |  |",
        "| constrained α=0.1 | 3 | 0.800 | 0.700 | 1.600 | **+0.020 (+0.010 to +0.030)** |  |",
    ]
    assert made[8:] == ["", "<!-- end -->", "after"]
    assert results_page.rendered("\n".join(made), tables) == "\n".join(made)


def test_an_interval_with_zero_is_not_bold(results_page, tables):
    paired = pd.read_csv(tables / "paired.csv").assign(low=-0.01)
    paired.to_csv(tables / "paired.csv")
    assert "| +0.020 (-0.010 to +0.030) |" in results_page.compare(tables, {"recipe": "a"})


def test_nothing_is_invented_where_there_are_no_runs(results_page, tables):
    assert results_page.compare(tables, {"recipe": "none"}) == "*No runs yet.*"
