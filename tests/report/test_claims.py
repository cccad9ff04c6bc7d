from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt.method.feasibility import is_monotone
from cudt.report import claims, paired
from cudt.report.claims import JudgedClaim
from cudt.report.claims.base import Evidence, Interval, of_every_seed, over_seeds, verdict
from cudt.report.collect import ReadRun, collect
from cudt.report.published import folder
from cudt.report.sweeps import ReadSweep
from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from tests.report import GAMMA_TRAIN, make_run, make_scored_run, plant_constraints, plant_descent

Judge = Callable[..., dict[str, JudgedClaim]]
N = 200
OBJECTIVES = ("constrained", "erm", "supervised")


def judged_in(out: Path, sweeps: Sequence[Any] = ()) -> dict[str, JudgedClaim]:
    runs = collect([out]).runs
    differences, _ = paired.compare(runs)
    return {one.claim.name: one for one in claims.judge(runs, sweeps, differences)}


def only(judged: JudgedClaim, baseline: str = "") -> Evidence:
    (found,) = judged.against(baseline)
    return found


def plant(trained_run: Run, out: Path, right: dict[str, Sequence[float]], *, n_seeds: int = 3, **changes: Any) -> None:
    """Runs of some objectives: the share of right answers at γ = 0 and at γ = 1, a bit more with each seed."""
    for objective, seed in itertools.product(right, range(n_seeds)):
        scores = {
            level: (np.arange(N) < N * (share + 0.005 * seed)).astype(float)
            for level, share in zip((0.0, 1.0), right[objective], strict=True)
        }
        make_scored_run(trained_run, out, scores, objective=objective, seed=seed, **changes)


# ---------------------------------------------------------------- the rule


def evidence(low: float, high: float, **changes: Any) -> Evidence:
    return Evidence("setting", "quantity", Interval((low + high) / 2, low, high, 3), **changes)


def test_an_interval_is_for_a_claim_only_if_all_of_it_is_in_the_claims_range():
    assert evidence(0.1, 0.2).outcome == "for"
    assert evidence(-0.1, 0.2).outcome == "unclear"
    assert evidence(-0.2, -0.1).outcome == "against"
    assert evidence(-0.002, 0.2, more_than=-0.003).outcome == "for"
    assert evidence(-0.005, 0.005, more_than=-0.01, less_than=0.01).outcome == "for"
    assert evidence(0.02, 0.03, more_than=-0.01, less_than=0.01).outcome == "against"
    assert evidence(0.005, 0.03, more_than=-0.01, less_than=0.01).outcome == "unclear"
    assert evidence(-0.1, 0.2, is_for_every_seed=True).outcome == "against"
    assert evidence(np.nan, np.nan).outcome == "not tested"
    assert evidence(0.1, 0.2, lacking="2 seeds").outcome == "not tested"


def test_a_claim_needs_more_than_half_of_the_settings_that_test_it():
    good, bad, open_, untested = evidence(1, 2), evidence(-2, -1), evidence(-1, 1), evidence(np.nan, np.nan)
    assert verdict([]) == verdict([untested]) == "not tested"
    assert verdict([good, untested]) == "supported"
    assert verdict([good, good, bad]) == "supported"
    assert verdict([good, bad]) == verdict([bad]) == verdict([bad, open_]) == "not supported"
    # Too few seeds to tell.
    assert verdict([good, open_]) == verdict([open_]) == "not tested"


def test_intervals_of_shares_and_of_their_differences_stay_in_their_range(trained_run, tmp_path):
    for objective, seed in itertools.product(("constrained", "erm"), range(3)):
        steps, losses = ((0.5, 0.9, 0.95)[seed], 0.0, 0.0), DOWN if objective == "constrained" or seed else UP
        curve = {0.0: 0.9, 1.0: 0.5}
        make_run(trained_run, tmp_path, curve, objective=objective, seed=seed, steps=steps, losses=losses)
    judged = judged_in(tmp_path)
    assert over_seeds([0.5, 0.9, 0.95]).high > 1
    assert only(judged["ratios"]).interval.high == 1
    found = only(judged["C1 compared"], "erm").interval
    unclipped = over_seeds([2 / 3, 0, 0])
    assert (found.low, found.high) == pytest.approx((unclipped.low, 1))
    assert unclipped.high > 1


def test_the_interval_over_seeds_is_students():
    found = over_seeds([0.1, 0.2, 0.3])
    # t_{0.975, 2} = 4.3026527, s = 0.1.
    reach = 4.3026527 * 0.1 / np.sqrt(3)
    assert (found.low, found.effect, found.high) == pytest.approx((0.2 - reach, 0.2, 0.2 + reach), rel=1e-4)
    assert not np.isfinite(over_seeds([0.1]).low)
    every = of_every_seed([0.1, 0.4, 0.1])
    assert (every.effect, every.low, every.high, every.seeds) == pytest.approx((0.2, 0.1, 0.4, 3))


# ---------------------------------------------------------------- robustness


@pytest.mark.parametrize(("worth", "expected"), [(0.7, "supported"), (0.5, "not supported"), (0.3, "not supported")])
def test_text_classifiers_are_compared_with_each_objective_out_of_distribution(worth, expected, trained_run, tmp_path):
    plant(trained_run, tmp_path, {"constrained": (0.9, worth), "erm": (0.9, 0.5), "supervised": (0.9, 0.9)})
    judged = judged_in(tmp_path)
    assert judged["C3"].verdict() == expected
    assert judged["C3"].verdict("supervised") == "not supported"
    found = only(judged["C3"], "erm")
    assert found.ours == pytest.approx(worth + 0.005)
    assert found.theirs == pytest.approx(0.505)
    table, _ = paired.compare(collect([tmp_path]).runs)
    wanted = (table["quantity"] == "ood_mean") & (table["objective"] == "constrained") & (table["against"] == "erm")
    row = table[wanted].iloc[0]
    assert (found.interval.effect, found.interval.low, found.interval.high, found.interval.seeds) == pytest.approx(
        (row["difference"], row["low"], row["high"], 3)
    )


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_fewer_than_three_seeds_test_nothing_and_the_reason_is_given(n_seeds, trained_run, tmp_path):
    plant(trained_run, tmp_path, {"constrained": (0.9, 0.8), "erm": (0.9, 0.5)}, n_seeds=n_seeds)
    judged = judged_in(tmp_path)
    assert judged["C3"].verdict() == "not tested"
    assert only(judged["C3"], "erm").lacking.startswith(f"{n_seeds} seed")
    assert "3 needed: train with --seed 0 1 2" in only(judged["C3"], "erm").lacking


def test_an_error_that_is_lower_is_for_the_claim_about_videos(trained_run, tmp_path):
    for objective, error in (("constrained", 4.0), ("erm", 9.0)):
        for seed in range(3):
            scores = {level: np.full(N, error + 0.1 * seed) + np.arange(N) / N for level in (0.0, 1.0)}
            make_scored_run(trained_run, tmp_path, scores, root=True, objective=objective, seed=seed)
    judged = judged_in(tmp_path)
    assert judged["C4"].verdict() == "supported"
    assert only(judged["C4"], "erm").interval.effect > 0.5
    assert judged["C3"].verdict() == "not tested"


@pytest.mark.parametrize(("inside", "expected"), [(0.9, "supported"), (0.89, "not tested"), (0.8, "not supported")])
def test_little_may_be_lost_in_distribution(inside, expected, trained_run, tmp_path):
    plant(trained_run, tmp_path, {"constrained": (inside, 0.5), "erm": (0.9, 0.5)})
    judged = judged_in(tmp_path)
    assert judged["ID cost"].verdict() == expected
    assert only(judged["ID cost"], "erm").more_than == -0.003


def test_runs_that_a_search_chose_among_do_not_count(trained_run, tmp_path):
    plant(trained_run, tmp_path, {"constrained": (0.9, 0.8), "erm": (0.9, 0.5)})
    names = [run.name for run in collect([tmp_path]).runs]

    def sweep(keys: list[str], settings: list[str]) -> Any:
        trials = pd.DataFrame({"run": names[:3], "state": "finished", **dict.fromkeys(keys, range(3))})
        info: Any = SimpleNamespace(keys=keys, settings=settings)
        return ReadSweep(tmp_path, info, trials, trials)

    assert judged_in(tmp_path, [sweep(["descent.alpha", "seed"], [])])["C3"].verdict() == "not tested"
    # Seeds, and settings that are compared, were not chosen.
    assert judged_in(tmp_path, [sweep(["seed", "model.layers"], ["model.layers"])])["C3"].verdict() == "supported"


# ---------------------------------------------------------------- descent


def add_level(run: Run, level: float, losses: Sequence[float]) -> None:
    rows = [("test", "gaussian", level, layer, loss, 0.5) for layer, loss in enumerate(losses, 1)]
    run.merge_table("layers", pd.DataFrame(rows, columns=TABLES["layers"]), TABLES["layers"][:4])


def add_constraints(run: Run, kept: int) -> None:
    """One level in distribution, where all are kept, and one out of it."""
    plant_descent(run, {0.0: {"kept": 3}, 1.0: {"kept": kept}})


DOWN, UP, MIXED = (0.6, 0.5, 0.4), (0.4, 0.5, 0.6), (0.4, 0.6, 0.5)


def test_every_layer_of_every_seed_has_to_lower_the_loss(trained_run, tmp_path):
    for seed in range(3):
        make_run(trained_run, tmp_path / "a", {0.0: 0.9, 1.0: 0.5}, seed=seed, losses=DOWN)
        make_run(trained_run, tmp_path / "b", {0.0: 0.9, 1.0: 0.5}, seed=seed, losses=MIXED if seed == 1 else DOWN)
    assert judged_in(tmp_path / "a")["C1"].verdict() == "supported"
    judged = judged_in(tmp_path / "b")["C1"]
    assert judged.verdict() == "not supported"
    found = only(judged).interval
    assert (found.effect, found.low, found.high, found.seeds) == pytest.approx(((2 + 2 / 3) / 3, 2 / 3, 1.0, 3))


@pytest.mark.parametrize(("first", "share"), [(0.7, 1.0), (0.5, 2 / 3)])
def test_the_first_layer_has_to_lower_f_0_as_in_a_monotone_run(first, share, trained_run, tmp_path):
    for seed in range(3):
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, seed=seed, losses=DOWN, reference=first)
    judged = judged_in(tmp_path)["C1"]
    assert only(judged).ours == pytest.approx(share)
    assert judged.verdict() == ("supported" if is_monotone(first, DOWN) else "not supported")


def test_layers_and_constraints_are_counted_at_the_level_of_training_and_above_it(trained_run, tmp_path):
    at_training = {"constrained": DOWN, "erm": MIXED, "supervised": DOWN}
    above = {"constrained": DOWN, "erm": UP, "supervised": MIXED}
    kept = {"constrained": 2, "erm": 0, "supervised": 2}
    for objective, seed in itertools.product(OBJECTIVES, range(3)):
        curve = {0.0: 0.9, 1.0: 0.5}
        run = make_run(trained_run, tmp_path, curve, objective=objective, seed=seed, losses=at_training[objective])
        add_level(run, 1.0, above[objective])
        # Below the level of training, which neither claim is about.
        add_level(run, GAMMA_TRAIN / 2, UP)
        add_constraints(run, kept[objective])
    judged = judged_in(tmp_path)
    effects = {
        name: {other: only(judged[name], other).interval.effect for other in ("erm", "supervised")}
        for name in ("C1 compared", "C2", "C2 constraints")
    }
    assert effects["C1 compared"] == pytest.approx({"erm": 1 / 3, "supervised": 0.0})
    assert effects["C2"] == pytest.approx({"erm": 2 / 3, "supervised": 1 / 3})
    assert effects["C2 constraints"] == pytest.approx({"erm": 2 / 3, "supervised": 0.0})
    assert [judged[name].verdict() for name in effects] == ["supported"] * 3
    assert judged["C2 constraints"].verdict("supervised") == "not supported"


def test_a_baseline_is_judged_by_the_constraints_of_the_constrained_runs(trained_run, tmp_path):
    for objective, seed in itertools.product(("constrained", "erm"), range(3)):
        alpha = 0.3 if objective == "constrained" else 0.0
        facts: dict[str, Any] = {"objective": objective, "seed": seed, "rates": [alpha] * 3, "reference": 1.0}
        overrides = [f"descent.alpha={alpha}"]
        run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, overrides=overrides, **facts)
        # Falls a little in every layer: α = 0 is kept by all three, α = 0.3 by the first alone.
        add_constraints(run, 1 if objective == "constrained" else 3)
        plant_constraints(run, {1.0: (0.6, 0.55, 0.5)})
    found = only(judged_in(tmp_path)["C2 constraints"], "erm")
    assert (found.ours, found.theirs) == pytest.approx((1 / 3, 1 / 3))
    assert found.interval.effect == 0


def test_runs_of_earlier_versions_have_no_constraints_and_the_command_is_given(trained_run, tmp_path):
    for objective, seed in itertools.product(("constrained", "erm"), range(3)):
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, objective=objective, seed=seed, old=True)
    judged = judged_in(tmp_path)
    assert judged["C2 constraints"].verdict() == "not tested"
    assert f"run `cudt eval-ood {tmp_path}/*`" in only(judged["C2 constraints"], "erm").lacking
    assert f"no ratios at γ_train: run `cudt eval-ood {tmp_path}/*`" in only(judged["ratios"]).lacking


def test_runs_without_test_losses_of_layers_are_no_test_and_the_command_is_given(trained_run, tmp_path):
    for objective, seed in itertools.product(("constrained", "erm"), range(3)):
        run = make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, objective=objective, seed=seed)
        if seed == 2:
            layers = run.read_table("layers")
            run.write_table("layers", layers[layers["split"] != "test"])
    judged = judged_in(tmp_path)
    for name, baseline, levels in (
        ("C1", "", "at γ_train"),
        ("C1 compared", "erm", "at γ_train"),
        ("C2", "erm", "at OOD levels"),
    ):
        assert judged[name].verdict() == "not tested"
        wanted = f"some runs have no test losses of layers {levels}: run `cudt eval-ood {tmp_path}/*`"
        assert only(judged[name], baseline).lacking == wanted


@pytest.mark.parametrize(("below", "expected"), [(0.7, "supported"), (0.4, "not supported")])
def test_most_steps_of_single_examples_have_to_lower_the_loss(below, expected, trained_run, tmp_path):
    for seed in range(3):
        steps = (below + 0.01 * seed, 0.2, 0.1)
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, seed=seed, steps=steps)
    judged = judged_in(tmp_path)["ratios"]
    assert judged.verdict() == expected
    assert only(judged).ours == pytest.approx(below + 0.01)
    assert "mean 0.80, median 0.75" in only(judged).quantity


# ---------------------------------------------------------------- ablations, depth, size, privacy


def make_series(trained_run: Run, out: Path, key: str, gains: dict[float, float]) -> None:
    for (value, gain), seed in itertools.product(gains.items(), range(3)):
        curve = {0.0: 0.9 - 0.001 * seed, 1.0: 0.5 + gain * (1 + 0.1 * seed)}
        make_run(trained_run, out, curve, seed=seed, overrides=[f"{key}={value}"])


def test_the_change_with_alpha_is_the_slope_times_the_range(trained_run, tmp_path):
    make_series(trained_run, tmp_path, "descent.alpha", {0.0: 0.0, 0.1: 0.02, 0.5: 0.1})
    judged = judged_in(tmp_path)
    found = only(judged["α"])
    # Linear in α: 0.1 from one end to the other, a tenth more with each seed.
    assert found.interval.effect == pytest.approx(0.11)
    assert (found.ours, found.theirs) == pytest.approx((0.61, 0.5))
    assert judged["α"].verdict() == "supported"
    assert only(judged["cost of α"]).interval.effect == pytest.approx(0)
    assert judged["cost of α"].verdict() == "supported"
    assert judged["η₂"].verdict() == "not tested"


@pytest.mark.parametrize(("gain", "expected"), [(0.001, "supported"), (0.2, "not supported")])
def test_the_dual_rate_must_not_matter(gain, expected, trained_run, tmp_path):
    rates = {0.001: 0.0, 0.01: gain / 2, 0.1: gain}
    make_series(trained_run, tmp_path, "descent.dual.learning_rate", rates)
    judged = judged_in(tmp_path)["η₂"]
    # Linear in the logarithm of the rate.
    assert only(judged).interval.effect == pytest.approx(gain * 1.1)
    assert judged.verdict() == expected


def test_two_values_are_no_ablation(trained_run, tmp_path):
    make_series(trained_run, tmp_path, "descent.alpha", {0.0: 0.0, 0.5: 0.1})
    assert judged_in(tmp_path)["α"].verdict() == "not tested"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [(0.02, 0.005, "supported"), (0.005, 0.02, "not supported"), (-0.005, -0.02, "not supported")],
    ids=["helps", "helps less", "harms less"],
)
def test_depth_has_to_help_and_constrained_models_more(ours, theirs, expected, trained_run, tmp_path):
    for objective, layers, seed in itertools.product(("constrained", "erm"), (3, 5, 7), range(3)):
        slope = (ours if objective == "constrained" else theirs) + 0.0001 * seed
        curve = {0.0: 0.9, 1.0: 0.5 + slope * layers}
        overrides, losses = [f"model.layers={layers}"], np.linspace(1, 0.5, layers).tolist()
        make_run(trained_run, tmp_path, curve, objective=objective, seed=seed, overrides=overrides, losses=losses)
    judged = judged_in(tmp_path)["depth"]
    found = only(judged, "erm")
    # The part of the claim that fails is shown: both have their numbers.
    effect = ours + 0.0001 if ours < 0 else ours - theirs
    assert (found.ours, found.theirs, found.interval.effect) == pytest.approx((ours + 0.0001, theirs + 0.0001, effect))
    assert judged.verdict() == expected


def plant_sizes(trained_run: Run, out: Path, gains: dict[tuple[str, int], float], **changes: Any) -> None:
    """Constrained and ERM runs of some recipes, by the number of layers and by what constraints add OOD."""
    for (name, layers), gain in gains.items():
        for objective, seed in itertools.product(("constrained", "erm"), range(3)):
            more = gain + 0.001 * seed if objective == "constrained" else 0.0
            facts: dict[str, Any] = {"name": name, "objective": objective, "seed": seed, **changes}
            facts["overrides"] = [f"model.layers={layers}", *changes.get("overrides", [])]
            facts["losses"] = np.linspace(1, 0.5, layers).tolist()
            make_run(trained_run, out / name, {0.0: 0.9, 1.0: 0.5 + more}, **facts)


@pytest.fixture
def as_pretrained(monkeypatch):
    """Runs of these recipes count as pretrained."""
    names = ("small", "middle", "large")
    monkeypatch.setattr(ReadRun, "pretrained", property(lambda run: run.recipe if run.recipe in names else ""))


def test_the_gain_of_the_deeper_model_is_compared_with_that_of_the_shallower(as_pretrained, trained_run, tmp_path):
    plant_sizes(trained_run, tmp_path, {("small", 3): 0.02, ("middle", 5): 0.0, ("large", 7): 0.1})
    # Deeper and shallower, but trained from scratch.
    plant_sizes(trained_run, tmp_path, {("scratch", 9): 0.0, ("tiny", 2): 0.3})
    judged = judged_in(tmp_path)["size"]
    found = only(judged, "erm")
    assert found.setting.startswith("large (L = 7) and small (L = 3)")
    # Welch: two variances of 10⁻⁶ / 3 with 4 degrees of freedom together, t = 2.7764451.
    reach = 2.7764451 * np.sqrt(2e-6 / 3)
    assert (found.interval.effect, found.interval.low) == pytest.approx((0.08, 0.08 - reach), rel=1e-3)
    assert judged.verdict() == "supported"


def test_a_cut_of_a_pretrained_model_is_no_other_size(as_pretrained, trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(ReadRun, "is_cut", property(lambda run: run.recipe == "middle"))
    plant_sizes(trained_run, tmp_path, {("small", 5): 0.02, ("middle", 3): 0.0, ("large", 7): 0.1})
    assert only(judged_in(tmp_path)["size"], "erm").setting.startswith("large (L = 7) and small (L = 5)")


def test_models_are_compared_on_the_same_task_only(as_pretrained, trained_run, tmp_path):
    plant_sizes(trained_run, tmp_path, {("small", 3): 0.02})
    plant_sizes(trained_run, tmp_path, {("large", 7): 0.1}, overrides=["task.train=60"])
    assert judged_in(tmp_path)["size"].evidence == []


def test_of_several_variants_the_best_on_validation_data_shows_the_gain(as_pretrained, trained_run, tmp_path):
    plant_sizes(trained_run, tmp_path, {("small", 3): 0.02, ("large", 7): 0.5}, best={"validation_loss": 0.4})
    better = {"best": {"validation_loss": 0.2}, "overrides": ["descent.alpha=0.3"]}
    plant_sizes(trained_run, tmp_path, {("large", 7): 0.1}, **better)
    assert only(judged_in(tmp_path)["size"], "erm").interval.effect == pytest.approx(0.08)


# ---------------------------------------------------------------- all of them


def test_the_table_has_every_claim_with_the_papers_figure_and_how_to_test_it(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5})
    judged = judged_in(tmp_path)
    table = claims.table([*judged.values()])
    assert list(dict.fromkeys(table["claim"])) == [claim.name for claim in claims.all_claims()]
    assert len({claim.name for claim in claims.all_claims()}) == len(claims.all_claims())
    assert {"C1", "C2", "C3", "C4", "ID cost", "α", "η₂", "depth", "ratios"} <= set(table["claim"])
    assert set(table["verdict"]) == {"not tested"}
    assert (table["lacking"] != "").all()
    assert (table["paper"] != "").all()
    assert table[table["claim"] == "C4"]["lacking"].item().startswith("no runs; to test it: cudt experiment ucsd-")
    assert claims.summary([*judged.values()]) == f"{len(judged)} not tested"


def test_the_papers_figures_are_those_of_its_data():
    papers = {claim.name: claim.paper() for claim in claims.all_claims()}
    text = pd.read_csv(folder() / "text.csv")
    for what, name in {
        "mean ratio": "ratios",
        "median ratio": "ratios",
        "steps of single": "ratios",
        "length-controlled win rate at γ = 1.5": "C3 language models",
        "in-distribution accuracy lost at most": "ID cost",
        "accuracy at γ = 1.65 and α = 0.5": "α",
        "accuracy at γ = 1.65 and α = 0 ": "α",
    }.items():
        rows = text[[f"{one} ".startswith(what) for one in text["what"]]]
        assert f"{float(rows['value'].iloc[0]):g}" in papers[name]
    table = pd.read_csv(folder() / "accuracy_auc.csv")
    wide = table.pivot(index=["model", "layers", "gamma_train", "dataset"], columns="objective", values="value")
    gains = (wide["constrained"] - wide["erm"]).dropna()
    assert f"better in {(gains > 0).sum()} of {len(gains)} cells" in papers["C3"]
    for model in ("RoBERTa", "DistilBERT"):
        gain = gains.xs(model, level="model").xs("IMDb", level="dataset").mean()
        assert f"{gain:+.3f} for {model}" in papers["size"]
