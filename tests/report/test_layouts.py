from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from cudt.recipe import NamedRecipe
from cudt.report import layouts, paper
from cudt.report.collect import ReadRun
from cudt.report.layout import Entry
from cudt.report.paper import RESULTS, SIDES, Cell, Place, ResultTable, Side
from tests.report.test_layout import check_latex, markdown_rows
from tests.report.test_paper import planted, published, ut_on_imdb, variants

__all__ = ["planted"]

FILLED = {"constrained": Side(1.55, seeds=3, paper=1.5, levels="3 levels to 2"), "erm": Side(paper=1.25)}


def table(**changes: Side) -> ResultTable:
    return ResultTable(RESULTS[1], True, [Cell(Place("UT", 3, 0.5, "IMDb"), {**FILLED, **changes})])


def entries(**changes: Side) -> list[Entry]:
    """Of a table with one cell, what stands in its two columns."""
    return layouts.of_results(table(**changes)).rows[0][-2:]


def test_a_row_is_a_model_its_depth_and_level_with_both_objectives_of_each_data_set():
    cells = [Cell(Place("UT", 3, 0.5, name), FILLED) for name in ("IMDb", "MNLI")]
    cells.append(Cell(Place("UT", 5, 0.5, "MNLI"), FILLED))
    laid_out = layouts.of_results(ResultTable(RESULTS[1], True, cells))
    assert laid_out.groups == [("", 3), ("IMDb", 2), ("MNLI", 2)]
    assert laid_out.headings == ["model", "L", "γ_train", "constr.", "unconstr.", "constr.", "unconstr."]
    assert [[entry.text for entry in row] for row in laid_out.rows] == [
        ["UT", "3", "0.5", "1.550", "", "1.550", ""],
        ["UT", "5", "0.5", "", "", "1.550", ""],
    ]


def test_beside_our_number_stand_the_papers_the_difference_and_the_seeds():
    assert entries() == [Entry("1.550", "1.500, +0.050; 3 seeds"), Entry("", "1.250")]


def test_one_seed_is_one_seed_and_the_best_of_many_says_of_how_many():
    assert entries(erm=Side(1.0, seeds=1))[1] == Entry("1.000", "1 seed")
    assert entries(erm=Side(1.0, seeds=1, best_of=7))[1] == Entry("1.000", "best of 7")


def test_the_better_side_is_bold_and_an_infeasible_one_is_marked():
    side = replace(FILLED["constrained"], is_better=True, infeasible=("run-1 is infeasible at layer 2",))
    entry = entries(constrained=side)[0]
    assert entry.is_bold
    assert entry.mark == "†"
    (note,) = [note for note in layouts.of_results(table(constrained=side)).notes if note.startswith("†")]
    assert note == "†: infeasible. UT on IMDb, L = 3, γ_train = 0.5: run-1 is infeasible at layer 2."


def test_levels_and_empty_cells_are_in_the_notes():
    first, last = layouts.of_results(table()).notes
    assert first.startswith("Ours (3 levels to 2); in brackets the paper's")
    assert last == "No run yet for 1 of 2 cells: UT on IMDb, L = 3, γ_train = 0.5: erm."


def test_of_many_empty_cells_some_are_named():
    made = layouts.of_results(paper.result_tables([])[0])
    assert made.notes[0].startswith("Ours (no run yet)")
    assert made.notes[1].startswith(
        "No run yet for 210 of 210 cells: DUST on Avenue, L = 3, γ_train = 0: constrained; "
    )
    assert made.notes[1].endswith("; the rest is in missing.txt.")


@pytest.mark.parametrize("has_runs", [False, True])
def test_every_table_is_whole_in_every_format(has_runs, planted):
    runs = [*ut_on_imdb(planted), planted["video-erm"], planted["video-constrained"]] if has_runs else []
    made = [layouts.of_results(one) for one in paper.result_tables(runs)] + layouts.hyper_parameters(runs)[0]
    assert len(made) == (7 if has_runs else 5)
    for layout in made:
        check_latex(layout.latex())
        _, _, *rows = markdown_rows(layout.markdown())
        assert len(rows) == len(layout.rows)
        for row, wanted in zip(rows, layout.rows, strict=True):
            assert len(row) == len(layout.headings)
            assert all(entry.text in cell and entry.detail in cell for cell, entry in zip(row, wanted, strict=True))


def test_a_recipe_with_a_strange_name_stays_in_its_cell(planted):
    place = Place(r"a|b & \c_d", 3, 0.5, "x|y")
    layout = layouts.of_results(ResultTable(RESULTS[1], False, [Cell(place, FILLED)]))
    heading, _, row = markdown_rows(layout.markdown())
    assert row[0] == r"a|b & \c_d"
    assert heading[3] == "x|y constr."
    check_latex(layout.latex())


# ---------------------------------------------------------------- hyper-parameters


def settings_of(runs: list[ReadRun], model: str, dataset: str) -> pd.Series[Any]:
    long = layouts.hyper_parameters(runs)[1]
    return long[(long["model"] == model) & (long["dataset"] == dataset)].iloc[0]


def test_the_papers_retentions_are_shown_as_rates():
    # It prints 0.774 for DistilBERT on IMDb, 6.50 for DUST and 5.50 for UT on video, 0.95 for Llama.
    assert settings_of([], "DistilBERT", "IMDb")["alpha_paper"] == pytest.approx(0.226)
    assert settings_of([], "DUST", "all")["alpha_paper"] == pytest.approx(0.35)
    assert settings_of([], "UT", "all")["alpha_paper"] == pytest.approx(0.45)
    assert settings_of([], "Llama 3.1 8B", "Alpaca")["alpha_paper"] == pytest.approx(0.05)


def test_the_papers_other_settings_are_as_it_prints_them():
    row = settings_of([], "DistilBERT", "IMDb")
    assert row[["f_0_paper", "beta_paper", "eta_2_paper", "layers_paper"]].tolist() == [1.0, 1.07, 0.0383, 12]


def with_alpha(run: ReadRun, alpha: float) -> ReadRun:
    settings = run.run.recipe.settings
    changed = settings.model_copy(update={"descent": settings.descent.model_copy(update={"alpha": alpha})})
    return replace(run, run=replace(run.run, recipe=NamedRecipe(run.recipe, changed)))


def test_ours_are_those_of_the_best_run_by_validation_data(planted):
    first, second = variants(ut_on_imdb(planted)[0], 0.3, 0.1)
    runs = [with_alpha(first, 0.3), with_alpha(second, 0.125), ut_on_imdb(planted)[1]]
    row = settings_of(runs, "UT", "IMDb")
    assert (row["alpha"], row["best_of"], row["f_0"]) == (0.125, 2, second.info["reference"])
    assert row["run"] == str(second.run.path)
    layout = next(one for one in layouts.hyper_parameters(runs)[0] if one.stem == "dual-language")
    place = layout.headings.index("α")
    (mine,) = [line for line in layout.rows if line[-1].text != "0"]
    assert mine[place].text == "0.125"
    assert mine[-1].text == "2"


def test_video_has_one_row_for_all_data_sets(planted):
    runs = [published(planted["video-constrained"], "UT", data) for data in ("UCSD", "Avenue")]
    assert settings_of(runs, "UT", "all")["best_of"] == 2
    assert settings_of(ut_on_imdb(planted), "UT", "all")["best_of"] == 0


def test_other_recipes_have_a_table_of_their_own(planted):
    made, long = layouts.hyper_parameters([planted["text-constrained"]])
    assert [layout.stem for layout in made] == ["dual-video", "dual-language", "dual-llama", "dual-other"]
    assert made[-1].rows[0][0].text == "reviews-ut"
    assert long.iloc[-1]["model"] == "reviews-ut"
    # ERM has no constraints, so it has none of these settings.
    assert len(layouts.hyper_parameters([planted["text-erm"]])[0]) == 3
    assert SIDES == ("constrained", "erm")
