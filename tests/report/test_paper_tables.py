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
from tests.report.test_paper_results import evaluated, planted, seeds, ut_on_imdb
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


def result(constrained: Side, erm: Side = EMPTY, dataset: str = "IMDb", layers: int = 3, **changes: Any) -> Result:
    sides = {"constrained": constrained, "erm": erm}
    cell = ComparableCell("UT", "accuracy", layers, 0.5, dataset)
    return Result(cell, sides, **{"difference": Difference(), "is_even": True, **changes})


def laid_out(*results: Result, is_published: bool = True) -> TextTable:
    return of_results(ResultTable(PAPER_TABLES[1], is_published, [*results]))


def entries(constrained: Side, erm: Side = EMPTY) -> list[Entry]:
    """The two entries of a table with one cell."""
    return laid_out(result(constrained, erm)).rows[0][-2:]


def test_a_row_is_a_model_its_depth_and_level_with_both_objectives_of_each_data_set(filled):
    made = laid_out(result(filled), result(filled, dataset="MNLI"), result(filled, dataset="MNLI", layers=5))
    assert made.groups == [("", 3), ("IMDb", 2), ("MNLI", 2)]
    assert made.headings == ["model", "L", "γ_train", "constr.", "unconstr.", "constr.", "unconstr."]
    assert [[entry.text for entry in row] for row in made.rows] == [
        ["UT", "3", "0.5", "1.550", "", "1.550", ""],
        ["UT", "5", "0.5", "", "", "1.550", ""],
    ]


def test_tables_of_denoising_have_the_noisy_input_next_to_both_objectives(filled):
    made = laid_out(result(filled, input=21.9524), result(filled, dataset="MNLI"))
    assert made.groups == [("", 3), ("IMDb", 3), ("MNLI", 3)]
    assert made.headings == ["model", "L", "γ_train", *(["constr.", "unconstr.", "input"] * 2)]
    assert [entry.text for entry in made.rows[0]] == ["UT", "3", "0.5", "1.550", "", "21.952", "1.550", "", ""]
    assert "Input: the noisy input itself, unchanged." in made.notes


def test_an_entry_has_our_number_the_papers_the_difference_and_the_seeds(filled):
    assert entries(filled) == [Entry("1.550", "1.500, +0.050; 3 seeds"), Entry("", "1.250")]


def test_at_other_levels_than_the_papers_there_is_no_difference_to_it(filled):
    assert entries(replace(filled, is_on_its_levels=False))[0] == Entry("1.550", "1.500, at other levels; 3 seeds")
    assert entries(replace(filled, is_on_its_levels=False, paper=math.nan))[0] == Entry("1.550", "3 seeds")


def test_one_seed_is_one_seed_and_the_best_of_many_says_of_how_many(planted):
    run = planted["text-erm"]
    assert entries(EMPTY, side_of(run, paper=math.nan))[1] == Entry("1.550", "1 seed")
    assert entries(EMPTY, side_of(run, paper=math.nan, best_of=7))[1] == Entry("1.550", "best of 7")


def test_nan_is_shown_as_not_a_number(planted):
    assert entries(side_of(planted["text-erm"], ours=math.nan))[0].text == "not a number"
    # There is no area under a single point.
    runs = [evaluated(run, {1.0: 0.8}) for run in ut_on_imdb(planted)]
    made = of_results(next(one for one in result_tables(runs) if one.stem == "accuracy-auc"))
    texts = [entry.text for row in made.rows for entry in row[3:] if entry.text]
    assert texts == ["not a number"] * 2


def test_the_better_side_is_bold_and_an_infeasible_one_is_marked(planted):
    verdicts = [{"layer": 2, "verdict": "relaxed"}]
    run = with_info(planted["text-constrained"], verdicts=verdicts, feasible=False)
    side = side_of(run, is_better=True)
    entry = entries(side)[0]
    assert entry.is_bold
    assert entry.mark == "†"
    (note,) = [note for note in laid_out(result(side)).notes if note.startswith("†")]
    assert (
        note == "†: infeasible, a constraint is not kept. UT on IMDb, L = 3, γ_train = 0.5: seed 0: relaxed at layer 2."
    )


@pytest.mark.parametrize("unit", ["examples", "seeds paired"])
def test_a_note_says_what_bold_means_and_what_intervals_of_single_runs_leave_open(unit, filled):
    better = replace(filled, is_better=True)
    made = laid_out(result(better, difference=Difference(0.1, 0.05, 0.15, unit, 40, "constrained")))
    (note,) = [note for note in made.notes if note.startswith("Bold")]
    assert ("nothing about other training seeds" in note) == (unit == "examples")
    assert not any(note.startswith("Bold") for note in laid_out(result(filled)).notes)


def test_a_note_names_unequal_numbers_of_runs_if_both_sides_have_runs(filled):
    uneven = [note for note in laid_out(result(filled, filled, is_even=False)).notes if "by luck alone" in note]
    assert len(uneven) == 1
    for other in (result(filled, filled), result(filled, EMPTY, is_even=False)):
        assert not any("by luck alone" in note for note in laid_out(other).notes)


def test_levels_and_empty_cells_are_in_the_notes(filled):
    first, last = laid_out(result(filled)).notes
    assert first.startswith("Our numbers (3 levels from 0 to 2); in brackets the paper's number")
    assert last == "No run yet for 1 of 2 numbers: UT on IMDb, L = 3, γ_train = 0.5: erm."
    (other,) = laid_out(result(filled), is_published=False).notes
    assert "in brackets the number of seeds." in other


def test_of_many_empty_cells_the_first_are_listed():
    made = of_results(result_tables([])[0])
    assert made.notes[0].startswith("Our numbers (no run yet)")
    assert made.notes[1].startswith(
        "No run yet for 210 of 210 numbers: DUST on Avenue, L = 3, γ_train = 0: constrained; "
    )
    assert made.notes[1].endswith("; the rest is in missing.txt.")


@pytest.mark.parametrize("has_runs", [False, True])
def test_every_table_is_complete_in_every_format(has_runs, planted):
    runs = [*ut_on_imdb(planted), planted["video-erm"], planted["video-constrained"]] if has_runs else []
    made = [of_results(one) for one in result_tables(runs)] + hyper_parameters(runs)[0]
    assert len(made) == (7 if has_runs else 5)
    for layout in made:
        check_latex(layout.latex())
        _, _, *rows = markdown_rows(layout.markdown())
        assert len(rows) == len(layout.rows)
        for row, wanted in zip(rows, layout.rows, strict=True):
            assert len(row) == len(layout.headings)
            assert all(entry.text in cell and entry.detail in cell for cell, entry in zip(row, wanted, strict=True))


def test_a_recipe_with_a_strange_name_stays_in_its_cell(filled):
    strange = ComparableCell(r"a|b & \c_d", "accuracy", 3, 0.5, "x|y")
    layout = laid_out(replace(result(filled), cell=strange), is_published=False)
    heading, _, row = markdown_rows(layout.markdown())
    assert row[0] == r"a|b & \c_d"
    assert heading[3] == "x|y constr."
    check_latex(layout.latex())
