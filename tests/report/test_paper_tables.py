from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cudt.report.collect import ReadRun
from cudt.report.comparable import ComparableCell
from cudt.report.compare import Chosen, Difference
from cudt.report.hyper_parameters import hyper_parameters
from cudt.report.paper_results import Result, ResultTable, Side, result_tables
from cudt.report.paper_tables import of_results
from cudt.report.published import PAPER_TABLES
from cudt.report.text_table import Entry, TextTable
from tests.report import with_info
from tests.report.test_paper_results import planted, seeds, ut_on_imdb
from tests.report.test_text_table import check_latex, markdown_rows

__all__ = ["planted"]

EMPTY = Side(Chosen([]), paper=1.25)


def side_of(*runs: ReadRun, best_of: int = 0, **changes: Any) -> Side:
    """1.55 over three levels, and the paper's 1.5."""
    facts = {"ours": 1.55, "levels": (0.0, 1.0, 2.0), "paper": 1.5, "is_on_its_levels": True}
    return Side(Chosen([*runs], best_of), **{**facts, **changes})


@pytest.fixture
def filled(planted) -> Side:
    return side_of(*seeds(planted["text-constrained"], 0.3, 0.3, 0.3))


def result(
    constrained: Side, erm: Side = EMPTY, dataset: str = "IMDb", layers: int = 3, **changes: Any
) -> Result:
    sides = {"constrained": constrained, "erm": erm}
    cell = ComparableCell("UT", "accuracy", layers, 0.5, dataset)
    return Result(cell, sides, **{"difference": Difference(), "is_even": True, **changes})


def laid_out(*results: Result, is_published: bool = True) -> TextTable:
    return of_results(ResultTable(PAPER_TABLES[1], is_published, [*results]))


def entries(constrained: Side, erm: Side = EMPTY) -> list[Entry]:
    """The two entries of a table with one cell."""
    return laid_out(result(constrained, erm)).rows[0][-2:]


def test_a_row_is_a_model_its_depth_and_level_with_both_objectives_of_each_data_set(filled):
    made = laid_out(
        result(filled), result(filled, dataset="MNLI"), result(filled, dataset="MNLI", layers=5)
    )
    assert made.groups == [("", 3), ("IMDb", 2), ("MNLI", 2)]
    assert made.headings == [
        "model",
        "L",
        "γ_train",
        "constr.",
        "unconstr.",
        "constr.",
        "unconstr.",
    ]
    assert [[entry.text for entry in row] for row in made.rows] == [
        ["UT", "3", "0.5", "1.550", "", "1.550", ""],
        ["UT", "5", "0.5", "", "", "1.550", ""],
    ]


def test_tables_of_denoising_have_the_noisy_input_next_to_both_objectives(filled):
    made = laid_out(result(filled, input=21.9524), result(filled, dataset="MNLI"))
    assert made.groups == [("", 3), ("IMDb", 3), ("MNLI", 3)]
    assert made.headings == ["model", "L", "γ_train", *(["constr.", "unconstr.", "input"] * 2)]
    assert [entry.text for entry in made.rows[0]] == [
        "UT",
        "3",
        "0.5",
        "1.550",
        "",
        "21.952",
        "1.550",
        "",
        "",
    ]
    assert "Input: the noisy input itself, unchanged." in made.notes


def test_an_entry_has_our_number_the_papers_the_difference_and_the_seeds(filled):
    assert entries(filled) == [Entry("1.550", "1.500, +0.050; 3 seeds"), Entry("", "1.250")]


def test_at_other_levels_than_the_papers_there_is_no_difference_to_it(filled):
    assert entries(replace(filled, is_on_its_levels=False))[0] == Entry(
        "1.550", "1.500, at other levels; 3 seeds"
    )
    assert entries(replace(filled, is_on_its_levels=False, paper=math.nan))[0] == Entry(
        "1.550", "3 seeds"
    )


def test_the_better_side_is_bold_and_an_infeasible_one_is_marked(planted):
    verdicts = [{"layer": 2, "verdict": "relaxed"}]
    run = with_info(planted["text-constrained"], verdicts=verdicts, feasible=False)
    side = side_of(run, is_better=True)
    entry = entries(side)[0]
    assert entry.is_bold
    assert entry.mark == "†"
    (note,) = [note for note in laid_out(result(side)).notes if note.startswith("†")]
    assert (
        note
        == "†: infeasible, a constraint is not kept. UT on IMDb, L = 3, γ_train = 0.5: seed 0: relaxed at layer 2."
    )


@pytest.mark.parametrize("has_runs", [False, True])
def test_every_table_is_complete_in_every_format(has_runs, planted):
    runs = (
        [*ut_on_imdb(planted), planted["video-erm"], planted["video-constrained"]]
        if has_runs
        else []
    )
    made = [of_results(one) for one in result_tables(runs)] + hyper_parameters(runs)[0]
    assert len(made) == (7 if has_runs else 5)
    for layout in made:
        check_latex(layout.latex())
        _, _, *rows = markdown_rows(layout.markdown())
        assert len(rows) == len(layout.rows)
        for row, wanted in zip(rows, layout.rows, strict=True):
            assert len(row) == len(layout.headings)
            assert all(
                entry.text in cell and entry.detail in cell
                for cell, entry in zip(row, wanted, strict=True)
            )
