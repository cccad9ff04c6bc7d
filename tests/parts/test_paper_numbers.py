"""The paper's numbers, which were typed in: their shape always, each against the paper's source
where that is there."""

from __future__ import annotations

import importlib.util
import itertools
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
    for cell, pair in table.groupby(["model", "layers", "gamma_train", "dataset"]):
        assert sorted(pair["objective"]) == ["constrained", "erm"], cell
        ranked = pair.sort_values("value", ascending=name == "rmse.csv")
        is_tied = pair["value"].nunique() == 1
        assert is_tied or (ranked["bold"] == "yes").tolist() == [True, False], cell


def table_of(head: str, rows: list[str], label: str) -> str:
    """A table as the paper's source has it."""
    body = " \\\\\n".join(rows)
    return (
        rf"\begin{{table}}\toprule {head} \midrule {body} \\ \bottomrule"
        rf"\label{{{label}}}\end{{table}}"
    )


def result_source(label: str, rows: list[dict[str, str]]) -> str:
    datasets = dict.fromkeys(row["dataset"] for row in rows)
    head = " & ".join(rf"\multicolumn{{2}}{{c}}{{\textbf{{{name.upper()}}}}}" for name in datasets)
    lines = []
    for key, found in itertools.groupby(
        rows, key=lambda row: (row["model"], row["layers"], row["gamma_train"])
    ):
        names = "".join(rf"\multirow[c]{{1}}{{*}}{{\textbf{{{word}}}}} & " for word in key[:2])
        values = (
            rf"\textbf{{{row['value']}}}" if row["bold"] == "yes" else row["value"] for row in found
        )
        lines.append(f"{names}{key[2]} & " + " & ".join(values))
    return table_of(head, lines, label)


@pytest.mark.parametrize("name", ["rmse.csv", "accuracy_auc.csv"])
def test_a_result_that_was_typed_wrong_is_found(name, check):
    rows = check.rows(name)
    assert list(check.result_differences(result_source(check.RESULTS[name], rows), name)) == []
    rows[20]["value"] = "9.999"
    (line,) = check.result_differences(result_source(check.RESULTS[name], rows), name)
    assert "the paper has ('9.999'" in line


def test_a_setting_that_was_typed_wrong_is_found(check):
    for name, label in check.PARAMETERS.items():
        rows = check.rows(name)
        for value in (rows[0]["beta"], "9.75"):
            rows[0]["beta"] = value
            lines = [" & ".join(row.values()) for row in rows]
            found = list(check.parameter_differences(table_of("", lines, label), name))
            assert len(found) == (value == "9.75")
