from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from cudt.config.recipe import NamedRecipe
from cudt.report import layouts, paper
from cudt.report.collect import ReadRun
from cudt.report.compare import SIDES, Difference, Standing
from cudt.report.layout import Entry, Layout
from cudt.report.paper import RESULTS, Cell, Place, ResultTable, Side
from tests.report import with_info
from tests.report.test_layout import check_latex, markdown_rows
from tests.report.test_paper import evaluated, planted, published, seeds, ut_on_imdb, variants

__all__ = ["planted"]

EMPTY = Side(Standing([]), paper=1.25)


def side_of(*runs: ReadRun, best_of: int = 0, **changes: Any) -> Side:
    """1.55 over three levels, and the paper's 1.5."""
    told = {"ours": 1.55, "levels": (0.0, 1.0, 2.0), "paper": 1.5, "is_on_its_levels": True}
    return Side(Standing([*runs], best_of), **{**told, **changes})


@pytest.fixture
def filled(planted) -> Side:
    return side_of(*seeds(planted["text-constrained"], 0.3, 0.3, 0.3))


def cell(constrained: Side, erm: Side = EMPTY, dataset: str = "IMDb", layers: int = 3, **changes: Any) -> Cell:
    sides = {"constrained": constrained, "erm": erm}
    return Cell(Place("UT", layers, 0.5, dataset), sides, **{"difference": Difference(), "is_even": True, **changes})


def laid_out(*cells: Cell, is_published: bool = True) -> Layout:
    return layouts.of_results(ResultTable(RESULTS[1], is_published, [*cells]))


def entries(constrained: Side, erm: Side = EMPTY) -> list[Entry]:
    """Of a table with one cell, what stands in its two columns."""
    return laid_out(cell(constrained, erm)).rows[0][-2:]


def test_a_row_is_a_model_its_depth_and_level_with_both_objectives_of_each_data_set(filled):
    made = laid_out(cell(filled), cell(filled, dataset="MNLI"), cell(filled, dataset="MNLI", layers=5))
    assert made.groups == [("", 3), ("IMDb", 2), ("MNLI", 2)]
    assert made.headings == ["model", "L", "γ_train", "constr.", "unconstr.", "constr.", "unconstr."]
    assert [[entry.text for entry in row] for row in made.rows] == [
        ["UT", "3", "0.5", "1.550", "", "1.550", ""],
        ["UT", "5", "0.5", "", "", "1.550", ""],
    ]


def test_beside_our_number_stand_the_papers_the_difference_and_the_seeds(filled):
    assert entries(filled) == [Entry("1.550", "1.500, +0.050; 3 seeds"), Entry("", "1.250")]


def test_at_other_levels_than_the_papers_no_difference_to_it_is_told(filled):
    assert entries(replace(filled, is_on_its_levels=False))[0] == Entry("1.550", "1.500, at other levels; 3 seeds")
    assert entries(replace(filled, is_on_its_levels=False, paper=math.nan))[0] == Entry("1.550", "3 seeds")


def test_one_seed_is_one_seed_and_the_best_of_many_says_of_how_many(planted):
    run = planted["text-erm"]
    assert entries(EMPTY, side_of(run, paper=math.nan))[1] == Entry("1.550", "1 seed")
    assert entries(EMPTY, side_of(run, paper=math.nan, best_of=7))[1] == Entry("1.550", "best of 7")


def test_what_is_not_a_number_is_told_as_such(planted):
    assert entries(side_of(planted["text-erm"], ours=math.nan))[0].text == "not a number"
    # There is no area under a single point.
    runs = [evaluated(run, {1.0: 0.8}) for run in ut_on_imdb(planted)]
    made = layouts.of_results(next(one for one in paper.result_tables(runs) if one.stem == "accuracy-auc"))
    texts = [entry.text for row in made.rows for entry in row[3:] if entry.text]
    assert texts == ["not a number"] * 2


def test_the_better_side_is_bold_and_an_infeasible_one_is_marked(planted):
    verdicts = [{"layer": 2, "verdict": "relaxed"}]
    run = with_info(planted["text-constrained"], verdicts=verdicts, feasible=False)
    side = side_of(run, is_better=True)
    entry = entries(side)[0]
    assert entry.is_bold
    assert entry.mark == "†"
    (note,) = [note for note in laid_out(cell(side)).notes if note.startswith("†")]
    assert note == f"†: infeasible. UT on IMDb, L = 3, γ_train = 0.5: {run.run.path.name}: relaxed at layer 2."


@pytest.mark.parametrize("unit", ["examples", "seeds paired"])
def test_what_bold_means_stands_below_and_what_single_runs_cannot_tell(unit, filled):
    better = replace(filled, is_better=True)
    made = laid_out(cell(better, difference=Difference(0.1, 0.05, 0.15, unit, 40, "constrained")))
    (note,) = [note for note in made.notes if note.startswith("Bold")]
    assert ("nothing about other training seeds" in note) == (unit == "examples")
    assert not any(note.startswith("Bold") for note in laid_out(cell(filled)).notes)


def test_unequal_numbers_of_runs_are_told_where_both_sides_are_there(filled):
    uneven = [note for note in laid_out(cell(filled, filled, is_even=False)).notes if "by luck alone" in note]
    assert len(uneven) == 1
    for other in (cell(filled, filled), cell(filled, EMPTY, is_even=False)):
        assert not any("by luck alone" in note for note in laid_out(other).notes)


def test_levels_and_empty_cells_are_in_the_notes(filled):
    first, last = laid_out(cell(filled)).notes
    assert first.startswith("Ours (3 levels from 0 to 2), in brackets the paper's")
    assert last == "No run yet for 1 of 2 cells: UT on IMDb, L = 3, γ_train = 0.5: erm."
    (other,) = laid_out(cell(filled), is_published=False).notes
    assert "in brackets how many seeds" in other


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


def test_a_recipe_with_a_strange_name_stays_in_its_cell(filled):
    place = Place(r"a|b & \c_d", 3, 0.5, "x|y")
    layout = laid_out(replace(cell(filled), place=place), is_published=False)
    heading, _, row = markdown_rows(layout.markdown())
    assert row[0] == r"a|b & \c_d"
    assert heading[3] == "x|y constr."
    check_latex(layout.latex())


# ---------------------------------------------------------------- hyper-parameters


def settings_of(runs: list[ReadRun], model: str, dataset: str) -> pd.Series[Any]:
    rows = rows_of(runs, model, dataset)
    assert len(rows) == 1
    return rows.iloc[0]


def rows_of(runs: list[ReadRun], model: str, dataset: str) -> pd.DataFrame:
    long = layouts.hyper_parameters(runs)[1]
    return long[(long["model"] == model) & (long["dataset"] == dataset)]


def test_the_papers_retentions_are_shown_as_rates():
    # It prints 0.774 for DistilBERT on IMDb, 6.50 for DUST and 5.50 for UT on video, 0.95 for Llama.
    assert settings_of([], "DistilBERT", "IMDb")["alpha_paper"] == pytest.approx(0.226)
    assert settings_of([], "DUST", "")["alpha_paper"] == pytest.approx(0.35)
    assert settings_of([], "UT", "")["alpha_paper"] == pytest.approx(0.45)
    assert settings_of([], "Llama 3.1 8B", "Alpaca")["alpha_paper"] == pytest.approx(0.05)


def test_the_papers_other_settings_are_as_it_prints_them():
    row = settings_of([], "DistilBERT", "IMDb")
    assert row[["f_0_paper", "beta_paper", "eta_2_paper", "layers_paper"]].tolist() == [1.0, 1.07, 0.0383, 12]


def with_alpha(run: ReadRun, alpha: float) -> ReadRun:
    settings = run.run.recipe.settings
    changed = settings.model_copy(update={"descent": settings.descent.model_copy(update={"alpha": alpha})})
    return replace(run, run=replace(run.run, recipe=NamedRecipe(run.recipe, changed)))


#: The paper's settings of UT on IMDb are of L = 3 and this level.
SEARCHED = 0.8


def test_ours_are_those_of_the_best_run_by_validation_data(planted):
    constrained, erm = ut_on_imdb(planted, gamma_train=SEARCHED)
    first, second = variants(constrained, 0.3, 0.1)
    runs = [with_alpha(first, 0.3), with_alpha(second, 0.125), erm]
    row = settings_of(runs, "UT", "IMDb")
    assert (row["alpha"], row["best_of"], row["f_0"]) == (0.125, 2, second.info.reference)
    assert row["run"] == str(second.run.path)
    layout = next(one for one in layouts.hyper_parameters(runs)[0] if one.stem == "dual-language")
    place = layout.headings.index("α")
    (mine,) = [line for line in layout.rows if line[-1].text != "0"]
    assert mine[place].text == "0.125"
    assert mine[-1].text == "2"


@pytest.mark.parametrize("other", [{"layers": 5}, {"gamma_train": 0.5}])
def test_runs_of_another_depth_or_level_are_not_chosen_from(other, planted):
    constrained = ut_on_imdb(planted, gamma_train=SEARCHED)[0]
    elsewhere = replace(constrained.run, path=constrained.run.path.with_name("elsewhere"))
    # Whose loss is less since less is asked of it.
    easier = replace(with_info(constrained, best={"validation_loss": 0.0}, **other), run=elsewhere)
    row = settings_of([constrained, easier], "UT", "IMDb")
    assert (row["best_of"], row["run"]) == (1, str(constrained.run.path))
    row = settings_of([constrained, easier], "imdb-ut", "imdb")
    assert (row["best_of"], row["run"]) == (1, str(easier.run.path))


def test_of_video_each_data_set_and_depth_is_chosen_from_by_itself(planted):
    run = planted["video-constrained"]
    places = [("ucsd-ut", 3), ("ucsd-ut", 3), ("ucsd-ut", 5), ("avenue-ut", 3)]
    runs = [published(run, recipe, layers=layers, gamma_train=0.15) for recipe, layers in places]
    assert rows_of(runs, "UT", "ucsd")[["layers", "best_of"]].to_numpy().tolist() == [[3, 2], [5, 1]]
    assert settings_of(runs, "UT", "avenue")["best_of"] == 1
    assert rows_of(runs, "UT", "").empty
    assert settings_of(ut_on_imdb(planted), "UT", "")["best_of"] == 0


def test_settings_that_the_paper_searched_at_another_level_stand_apart(planted):
    runs = [published(planted["video-constrained"], "ucsd-ut", gamma_train=0.13)]
    assert settings_of(runs, "UT", "")["best_of"] == 0
    assert settings_of(runs, "ucsd-ut", "ucsd")["best_of"] == 1


def test_other_recipes_are_chosen_from_by_depth_and_level(planted):
    run = planted["text-constrained"]
    runs = [with_info(run, gamma_train=gamma) for gamma in (0.4, 0.1, 0.4)]
    rows = rows_of(runs, "reviews-ut", "reviews")
    assert rows[["gamma_train", "best_of"]].to_numpy().tolist() == [[0.1, 1], [0.4, 2]]


def test_other_recipes_have_a_table_of_their_own(planted):
    made, long = layouts.hyper_parameters([planted["text-constrained"]])
    assert [layout.stem for layout in made] == ["dual-video", "dual-language", "dual-llama", "dual-other"]
    assert made[-1].rows[0][0].text == "reviews-ut"
    assert long.iloc[-1]["model"] == "reviews-ut"
    # ERM has no constraints, so it has none of these settings.
    assert len(layouts.hyper_parameters([planted["text-erm"]])[0]) == 3
    assert SIDES == ("constrained", "erm")
