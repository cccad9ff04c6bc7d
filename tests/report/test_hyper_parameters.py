"""Settings of the best runs next to the paper's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from cudt.config.recipe import NamedRecipe
from cudt.report.collect import ReadRun
from cudt.report.hyper_parameters import hyper_parameters
from tests.report import with_info
from tests.report.test_paper_results import planted, published, ut_on_imdb, variants

__all__ = ["planted"]


def settings_of(runs: list[ReadRun], model: str, dataset: str) -> pd.Series[Any]:
    rows = rows_of(runs, model, dataset)
    assert len(rows) == 1
    return rows.iloc[0]


def rows_of(runs: list[ReadRun], model: str, dataset: str) -> pd.DataFrame:
    long = hyper_parameters(runs)[1]
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
    layout = next(one for one in hyper_parameters(runs)[0] if one.stem == "dual-language")
    column = layout.headings.index("α")
    (mine,) = [line for line in layout.rows if line[-1].text != "0"]
    assert mine[column].text == "0.125"
    assert mine[-1].text == "2"


@pytest.mark.parametrize("other", [{"layers": 5}, {"gamma_train": 0.5}])
def test_the_best_is_selected_among_runs_of_one_depth_and_level(other, planted):
    constrained = ut_on_imdb(planted, gamma_train=SEARCHED)[0]
    elsewhere = replace(constrained.run, path=constrained.run.path.with_name("elsewhere"))
    # Whose loss is less since less is asked of it.
    easier = replace(with_info(constrained, best={"validation_loss": 0.0}, **other), run=elsewhere)
    row = settings_of([constrained, easier], "UT", "IMDb")
    assert (row["best_of"], row["run"]) == (1, str(constrained.run.path))
    row = settings_of([constrained, easier], "imdb-ut", "imdb")
    assert (row["best_of"], row["run"]) == (1, str(easier.run.path))


def test_for_video_the_best_is_selected_for_each_data_set_and_depth(planted):
    run = planted["video-constrained"]
    recipes = [("ucsd-ut", 3), ("ucsd-ut", 3), ("ucsd-ut", 5), ("avenue-ut", 3)]
    runs = [published(run, recipe, layers=layers, gamma_train=0.15) for recipe, layers in recipes]
    assert rows_of(runs, "UT", "ucsd")[["layers", "best_of"]].to_numpy().tolist() == [[3, 2], [5, 1]]
    assert settings_of(runs, "UT", "avenue")["best_of"] == 1
    assert rows_of(runs, "UT", "").empty
    assert settings_of(ut_on_imdb(planted), "UT", "")["best_of"] == 0


def test_runs_at_another_level_than_the_papers_search_are_in_the_table_of_others(planted):
    runs = [published(planted["video-constrained"], "ucsd-ut", gamma_train=0.13)]
    assert settings_of(runs, "UT", "")["best_of"] == 0
    assert settings_of(runs, "ucsd-ut", "ucsd")["best_of"] == 1


def test_for_other_recipes_the_best_is_selected_for_each_level(planted):
    run = planted["text-constrained"]
    runs = [with_info(run, gamma_train=gamma) for gamma in (0.4, 0.1, 0.4)]
    rows = rows_of(runs, "reviews-ut", "reviews")
    assert rows[["gamma_train", "best_of"]].to_numpy().tolist() == [[0.1, 1], [0.4, 2]]


def test_other_recipes_have_a_table_of_their_own(planted):
    made, long = hyper_parameters([planted["text-constrained"]])
    assert [layout.stem for layout in made] == ["dual-video", "dual-language", "dual-llama", "dual-other"]
    assert made[-1].rows[0][0].text == "reviews-ut"
    assert long.iloc[-1]["model"] == "reviews-ut"
    # ERM has no constraints, so it has none of these settings.
    assert len(hyper_parameters([planted["text-erm"]])[0]) == 3
