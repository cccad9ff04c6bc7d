"""Settings of the best runs next to the paper's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from cudt.config.recipe import NamedRecipe, load
from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.report.collect import ReadRun
from cudt.report.compare import compare
from cudt.report.hyper_parameters import hyper_parameters, printed_settings
from cudt.report.published import folder
from cudt.sweep import definition
from cudt.sweep.search import Range
from tests.report.test_paper_results import planted, ut_on_imdb, validated, variants

__all__ = ["planted"]


def settings_of(runs: list[ReadRun], model: str, dataset: str) -> pd.Series[Any]:
    rows = rows_of(runs, model, dataset)
    assert len(rows) == 1
    return rows.iloc[0]


def rows_of(runs: list[ReadRun], model: str, dataset: str) -> pd.DataFrame:
    long = hyper_parameters(runs)[1]
    return long[(long["model"] == model) & (long["dataset"] == dataset)]


def test_the_papers_retentions_are_shown_as_rates():
    # It prints 0.774 for DistilBERT on IMDb, 6.50 for DUST and 5.50 for UT on video, 0.95 for
    # Llama.
    assert settings_of([], "DistilBERT", "IMDb")["alpha_paper"] == pytest.approx(0.226)
    assert settings_of([], "DUST", "")["alpha_paper"] == pytest.approx(0.35)
    assert settings_of([], "UT", "")["alpha_paper"] == pytest.approx(0.45)
    assert settings_of([], "Llama 3.1 8B", "Alpaca")["alpha_paper"] == pytest.approx(0.05)


def test_the_papers_other_settings_are_as_it_prints_them():
    row = settings_of([], "DistilBERT", "IMDb")
    assert row[["f_0_paper", "beta_paper", "eta_2_paper", "layers_paper"]].tolist() == [
        1.0,
        1.07,
        0.0383,
        12,
    ]


@pytest.mark.parametrize(("seed", "scale"), [(0, 127.5**2 / 3), (1, 1e-3)])
def test_a_scaled_problem_with_scaled_f_0_and_beta_divided_by_the_scale_has_the_same_multipliers(
    seed, scale
):
    """The conversion of ViT's settings, on problems with β = 0.71: all gradients grow alike, so λ
    is the same."""
    losses = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.double) + 0.5

    def gradients(factor: float) -> tuple[torch.Tensor | None, ...]:
        descent = LayerwiseDescent(
            3,
            0.56,
            2.0 * factor,
            resilience="slack",
            beta=0.71 / factor,
            dual=Dual(learning_rate=3e-4),
        )
        (slack,) = descent.slack_parameters()
        slack.data.copy_(factor * torch.tensor([0.1, 0.2, 0.3]))
        scaled = (factor * losses).requires_grad_()
        for _ in range(5):
            descent.dual_step(scaled.detach())
        descent.lagrangian(scaled).backward()
        return descent.multiplier_values, scaled.grad, slack.grad

    for ours, papers in zip(gradients(scale), gradients(1.0), strict=True):
        assert ours is not None
        assert papers is not None
        assert torch.allclose(ours, papers, rtol=1e-4)


#: The recipe of each row of the paper's tables of settings, and the paper's primal learning rate.
RECIPES = {
    ("DUST", ""): ["ucsd-dust", "avenue-dust", "shanghaitech-dust"],
    ("UT", ""): ["ucsd-ut", "avenue-ut", "shanghaitech-ut"],
    ("ViT", ""): ["ucsd-vit", "avenue-vit", "shanghaitech-vit"],
    ("DistilBERT", "IMDb"): ["imdb-distilbert", "imdb-bert"],
    ("DistilBERT", "MNLI"): ["mnli-distilbert"],
    ("UT", "IMDb"): ["imdb-ut"],
    ("UT", "MNLI"): ["mnli-ut"],
    ("Llama 3.1 8B", "Alpaca"): ["alpaca-llama"],
}
PRINTED = [
    (recipe, printed_settings(row), row)
    for file in ("dual_video.csv", "dual_language.csv", "dual_llama.csv")
    for row in pd.read_csv(folder() / file).to_dict("records")
    for recipe in RECIPES[row["model"], row.get("dataset", "")]
]


@pytest.mark.parametrize(("recipe", "printed", "row"), PRINTED, ids=[one[0] for one in PRINTED])
def test_recipes_have_the_settings_that_the_paper_prints(recipe, printed, row):
    descent = load(recipe).settings.descent
    ours = [descent.alpha, descent.reference, descent.beta, descent.dual.learning_rate]
    # Recipes round to the three digits of the table.
    assert ours == pytest.approx(
        [printed[key] for key in ("alpha", "f_0", "beta", "eta_2")], rel=5e-3
    )


@pytest.mark.parametrize("recipe", [name for name, _, row in PRINTED if row["model"] == "UT"])
@pytest.mark.parametrize("objective", ["constrained", "erm"])
def test_the_papers_ut_has_one_set_of_weights_for_all_layers(recipe, objective):
    assert getattr(load(recipe, objective=objective).settings.model, "tie_layers", None) is True


def learning_rates() -> dict[str, float]:
    rows = pd.read_csv(folder() / "text.csv")
    rates = rows[rows["what"].str.startswith("primal learning rate")]
    return {f"{row.what}, {row.setting}": float(row.value) for row in rates.itertuples()}


def test_recipes_have_the_primal_learning_rates_that_the_paper_prints():
    printed = learning_rates()
    for recipe, _, row in PRINTED:
        if row["model"] != "Llama 3.1 8B":
            kind = "text" if "dataset" in row else "video"
            ours = load(recipe).settings.training.learning_rate
            assert ours == printed[f"primal learning rate of {kind}, all models"], recipe
    deep = load("avenue-dust-9").settings
    assert getattr(deep.model, "layers", None) == 9
    assert deep.training.learning_rate == printed["primal learning rate, DUST on Avenue, L = 9"]


SEARCHES = {
    "ucsd-dust": "video-search",
    "ucsd-ut": "video-search-ut",
    "ucsd-vit": "video-search-vit",
    "imdb-distilbert": "text-search",
    "mnli-distilbert": "text-search",
    "imdb-ut": "text-search-depth",
    "mnli-ut": "text-search-depth",
}


@pytest.mark.parametrize("recipe", SEARCHES)
def test_a_search_contains_the_settings_that_the_paper_prints(recipe):
    (printed,) = [values for name, values, _ in PRINTED if name == recipe]
    sweep = definition.load(SEARCHES[recipe], recipe)
    searched = sweep.arm("constrained").search
    recipes_own = load(recipe).settings.descent
    for key, setting, fixed in (
        ("alpha", "descent.alpha", recipes_own.alpha),
        ("f_0", "descent.reference", recipes_own.reference),
        ("beta", "descent.beta", recipes_own.beta),
        ("eta_2", "descent.dual.learning_rate", recipes_own.dual.learning_rate),
    ):
        values = searched.get(setting, [fixed])
        if isinstance(values, Range):
            assert values.low <= printed[key] <= values.high, key
        else:
            assert any(value == pytest.approx(printed[key], rel=5e-3) for value in values), key


def with_alpha(run: ReadRun, alpha: float) -> ReadRun:
    settings = run.run.recipe.settings
    changed = settings.model_copy(
        update={"descent": settings.descent.model_copy(update={"alpha": alpha})}
    )
    return replace(run, run=replace(run.run, recipe=NamedRecipe(run.recipe, changed)))


#: The paper's settings of UT on IMDb are of L = 3 and this level.
SEARCHED = 0.8


def test_ours_are_those_of_the_best_run_by_validation_data(planted):
    constrained, erm = ut_on_imdb(planted, gamma_train=SEARCHED)
    first, second = variants(constrained, 0.3, 0.1)
    runs = [with_alpha(first, 0.3), with_alpha(second, 0.125), erm]
    row = settings_of(runs, "UT", "IMDb")
    assert (row["alpha"], row["n_runs"], row["f_0"]) == (0.125, 2, second.info.reference)
    assert row["run"] == str(second.run.path)
    layout = next(one for one in hyper_parameters(runs)[0] if one.stem == "dual-language")
    column = layout.headings.index("α")
    (mine,) = [line for line in layout.rows if line[-1].text]
    assert mine[column].text == "0.125"
    assert mine[-1].text == "best of 2"


def test_the_best_run_is_the_one_that_is_compared_with_erm(planted):
    """ERM has no validation metric over γ: the loss decides, here as in the comparison."""
    constrained, erm = planted["text-constrained"], planted["text-erm"]
    first, second = (
        replace(run, run=replace(run.run, path=run.run.path.parent / f"run-{number}"))
        for number, run in enumerate(variants(constrained, 0.1, 0.2))
    )
    runs = [validated(first, 0.5, 0.5), validated(second, 0.9, 0.9), erm]
    (row,) = hyper_parameters(runs)[1].query("n_runs > 0").to_dict("records")
    assert row["run"] == str(compare(runs, "gaussian").sides["constrained"].runs[0].run.path)
    assert row["run"].endswith("run-0")
