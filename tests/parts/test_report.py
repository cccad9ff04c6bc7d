"""What a report says, from planted runs whose numbers are computed by hand, and the paper's numbers."""

from __future__ import annotations

import itertools
import json
import math
import os
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cudt import report
from cudt.config import recipe as recipes
from cudt.report import charts, compare, figures, frames, paper, tables
from cudt.report.compare import SIDES
from cudt.report.frames import Frames, Sweep
from cudt.report.paired import Comparison, Differences
from cudt.report.tables import TextTable
from cudt.runs.info import RunInfo
from cudt.sweep.results import FACTS, best_of_arms
from cudt.sweep.worker import score_of
from tests.planted import GAMMA_TRAIN, REACH, make_run, make_video_run, plant_layers, plant_weights
from tests.sweeps import sweep_of

#: ID at 0, OOD at 1 and 2. By the trapezoid rule 0.85 + 0.7, and 0.9 + 0.65.
CURVES = {"constrained": {0.0: 0.9, 1.0: 0.8, 2.0: 0.6}, "erm": {0.0: 1.0, 1.0: 0.8, 2.0: 0.5}}


@pytest.fixture
def plant(trained_run, tmp_path) -> Any:
    """Plants a run of an objective with its curve."""

    def planted(objective: str = "constrained", curve: Any = None, **changes: Any) -> Any:
        curve = CURVES[objective] if curve is None else curve
        return make_run(trained_run, tmp_path, curve or None, objective=objective, **changes)

    return planted


def read(folder: Path) -> Frames:
    found = frames.read([folder])
    compare.assign(found)
    return found


def compared(folder: Path) -> list[Comparison]:
    found = read(folder)
    return [Differences(found).comparison(match, "gaussian") for match in matches(found.runs)]


def matches(runs: Any) -> list[list[int]]:
    cells = compare.without_ablations(runs).groupby("cell")
    return [match for _, cell in cells for match in compare.matches(cell)]


def summary(folder: Path) -> Any:
    found = read(folder)
    (row,) = tables.summary(found, tables.curves(found)).to_dict("records")
    return row


# ---------------------------------------------------------------- tables


def test_a_curve_has_mean_and_standard_deviation_over_seeds(plant, tmp_path):
    for seed, accuracy in enumerate([0.9, 0.6, 0.6]):
        plant(curve={0.0: accuracy, 1.0: 0.5}, seed=seed)
    curve = tables.curves(read(tmp_path))
    assert curve["gamma"].tolist() == [0, 1]
    assert curve["mean"].tolist() == pytest.approx([0.7, 0.5])
    # Deviations of 0.2, −0.1 and −0.1 with n − 1 = 2.
    assert curve["std"].tolist() == pytest.approx([math.sqrt(0.06 / 2), 0])
    assert curve["low"].tolist() == pytest.approx([0.7 - REACH, 0.5 - REACH])
    assert curve["seeds"].tolist() == [3, 3]


def test_a_curve_never_changes_its_seeds_and_the_levels_left_out_are_named(plant, tmp_path):
    plant(curve={0.0: 0.9, 0.5: 0.8, 1.0: 0.5})
    plant(curve={0.0: 0.7, 1.0: 0.3}, seed=1)
    found = read(tmp_path)
    assert tables.curves(found)["gamma"].tolist() == [0, 1]
    (warning,) = found.warnings
    assert "only some seeds were evaluated at 0.5" in warning


def test_the_summary_splits_the_grid_at_the_training_level(plant, tmp_path):
    plant(curve={0.0: 1.0, GAMMA_TRAIN: 0.8, 0.5: 0.6, 1.0: 0.2})
    row = summary(tmp_path)
    assert row["id_mean"] == pytest.approx((1.0 + 0.8) / 2)
    assert row["ood_mean"] == pytest.approx((0.6 + 0.2) / 2)
    assert row["grid_mean"] == pytest.approx(2.6 / 4)
    assert row["auc"] == pytest.approx(0.4 * 0.9 + 0.1 * 0.7 + 0.5 * 0.4)
    assert (row["range"], row["levels"]) == ("γ 0 to 1", 4)


# ---------------------------------------------------------------- which runs are read


def test_failed_running_and_damaged_runs_are_left_out_with_a_warning_each(plant, tmp_path):
    good = plant()
    failed, running, damaged = (plant(seed=seed) for seed in (1, 2, 3))
    failed.update_info(RunInfo(status="failed", reason="the loss is not finite"))
    running.update_info(RunInfo(status="running"))
    (damaged.path / "ood.csv").write_text("perturbation\ngaussian\n")
    found = read(tmp_path)
    assert found.runs["path"].tolist() == [good.path]
    told = "\n".join(found.warnings)
    assert f"{failed.path}: failed (the loss is not finite)" in told
    assert f"{running.path}: running" in told
    assert f"{damaged.path}/ood.csv: damaged" in told


def test_runs_on_other_test_data_than_most_of_their_recipe_are_left_out(plant, tmp_path):
    for seed, data in enumerate(("new", "new", "old")):
        plant(seed=seed, test_data=data)
    plant("erm", test_data="new")
    found = read(tmp_path)
    assert sorted(found.runs["seed"]) == [0, 0, 1]
    assert "other test data" in found.warnings[0]


# ---------------------------------------------------------------- who is compared with whom


def test_runs_that_differ_only_in_their_seed_all_count(plant, tmp_path):
    for seed, shift in enumerate((0.0, 0.1, 0.2)):
        plant(seed=seed, curve={0.0: 0.5, 1.0: 0.5 + shift, 2.0: 0.5 + shift})
    for seed in (0, 1):
        plant("erm", seed=seed)
    (made,) = compared(tmp_path)
    assert [made.sides[side].how for side in SIDES] == ["3 seeds", "2 seeds"]
    assert made.numbers["ood_mean"]["constrained"] == pytest.approx(0.6)
    assert made.numbers["auc"]["constrained"] == pytest.approx(1.15)
    assert made.numbers["auc"]["is_even"]


@pytest.mark.parametrize("searched", SIDES)
def test_with_variants_on_one_side_both_are_the_best_on_validation_data(searched, plant, tmp_path):
    other = next(side for side in SIDES if side != searched)
    for number, loss in enumerate((0.3, 0.1, 0.2)):
        tried = [f"training.learning_rate={0.1 / (1 + number)}"]
        plant(searched, overrides=tried, best={"validation_loss": loss})
    for seed, loss in enumerate((0.6, 0.5)):
        plant(other, seed=seed, best={"validation_loss": loss})
    (made,) = compared(tmp_path)
    assert [made.sides[side].best_of for side in (searched, other)] == [3, 2]
    runs = read(tmp_path).runs
    chosen = {side: runs.loc[made.sides[side].runs] for side in SIDES}
    assert chosen[searched]["validation_loss"].tolist() == [0.1]
    assert chosen[other]["seed"].tolist() == [1]
    # The best of more is better by luck alone.
    assert not made.numbers["auc"]["is_even"]
    assert made.numbers["ood_mean"]["better"] == ""


def test_if_the_best_is_not_evaluated_the_side_is_empty_and_names_the_command(plant, tmp_path):
    plant(overrides=["descent.alpha=0.2"], best={"validation_loss": 0.9})
    best = plant(curve={}, overrides=["descent.alpha=0.3"], best={"validation_loss": 0.1})
    plant("erm")
    (made,) = compared(tmp_path)
    problem = f"the best by validation data is not evaluated: cudt eval-ood {best.path}"
    assert made.sides["constrained"].problem == made.numbers["ood_mean"]["reason"] == problem
    assert math.isnan(made.numbers["mean"]["constrained"])
    assert made.levels == [0.0, 1.0, 2.0]


def test_the_report_shows_the_run_that_best_yaml_names(plant, tmp_path):
    # The second violates a constraint, another sweep scored the third at γ = 2, too. The others are
    # as good as the first, the only one that was evaluated because best.yaml names it.
    violated = {"verdicts": [{"layer": 1, "verdict": "violated"}], "feasible": False}
    grids = [(0.8, 0.7), (0.9, 0.9), (0.8, 0.6, 0.99), *[(0.7, 0.8)] * 5]
    rows = []
    for number, grid in enumerate(grids):
        facts: Any = violated if number == 1 else {"feasible": True}
        alpha = f"descent.alpha={0.1 + number / 100}"
        run = plant(curve=None if number < 3 else {}, overrides=[alpha], validation=grid, **facts)
        found = {"score": score_of(run, "grid", [0.0, 1.0]), "violated": int(number == 1)}
        rows.append(
            {"setting": "", "arm": "one", "state": "finished", "run": str(run.path), **found}
        )
    trials = pd.DataFrame(rows, columns=["setting", "arm", "state", "score", *FACTS])
    named = best_of_arms(trials, sweep_of(tmp_path))["run"].tolist()
    assert named == [rows[0]["run"]]
    runs = read(tmp_path).runs
    side = compare.choose(runs, "gaussian")["constrained"]
    assert (side.best_of, runs.loc[side.runs, "path"].map(str).tolist()) == (8, named)


@pytest.mark.parametrize(
    "other",
    [{"gamma_train": 1.0}, {"layers": 9}, {"overrides": ["task.test=60"]}, {"kind": "uniform"}],
)
def test_unlike_runs_are_not_compared(other, plant, tmp_path):
    plant()
    plant("erm", **other)
    assert compare.pairs(read(tmp_path).runs) == []


def test_each_kind_of_constraints_is_compared_with_erm_on_its_own(plant, tmp_path):
    for overrides in ([], ["descent.form=ladder"], ["descent.alpha=0.3"]):
        plant(overrides=overrides)
    plant("erm")
    runs = read(tmp_path).runs
    kinds = [{*runs.loc[match, "constraints"]} for match in matches(runs)]
    assert sorted(map(sorted, kinds)) == [[""], ["", "ladder"]]
    assert sorted(len(match) for match in matches(runs)) == [2, 3]


def test_erm_is_matched_with_the_constrained_runs_of_its_model_settings(plant, tmp_path):
    for objective in SIDES:
        for overrides in ([], ["model.width=32"]):
            plant(objective, overrides=overrides)
    runs = read(tmp_path).runs
    found = matches(runs)
    assert len(found) == 2
    assert all(runs.loc[match, "model_text"].nunique() == 1 for match in found)


def test_repeated_settings_are_compared_with_erm_of_as_many_epochs(plant, tmp_path):
    for objective in SIDES:
        for epochs in (1, 3):
            plant(objective, overrides=[f"training.epochs={epochs}"])
    runs = read(tmp_path).runs.assign(is_repeated=True)
    found = matches(runs)
    assert [len(match) for match in found] == [2, 2]
    assert all(runs.loc[match, "epochs"].nunique() == 1 for match in found)


def test_of_two_copies_of_a_run_the_evaluated_one_counts(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "a")
    evaluated = make_run(trained_run, tmp_path / "b", CURVES["erm"])
    assert read(tmp_path).runs["path"].tolist() == [evaluated.path]


def test_a_search_with_one_finished_run_is_no_repetition(plant, tmp_path):
    name = "/".join(plant().path.parts[-2:])
    (tmp_path / "trials_wide.csv").write_text(f"state,run\nfinished,{name}\nfailed,\n")
    for sampler, is_search in (("tpe", True), ("seeds", False)):
        arms = {"one": {"sampler": sampler, "budget": 2}}
        (tmp_path / "sweep.json").write_text(json.dumps({"measure": "loss", "arms": arms}))
        assert frames.read([tmp_path]).sweeps == [Sweep({name}, "loss", is_search)]


# ---------------------------------------------------------------- the paper beside ours


def published(plant: Any, recipe: str, *overrides: str, curve: Any = None, **info: Any) -> None:
    """A run of each objective, as ones of a recipe that comes with cudt."""
    for objective in SIDES:
        loaded = recipes.load(recipe, overrides, objective=objective)
        facts = {"layers": 3, "gamma_train": 0.0, **info}
        plant(objective, curve, recipe=loaded, feasible=True, **facts)


def results(folder: Path) -> tuple[list[TextTable], dict[str, pd.DataFrame]]:
    return paper.tables(Differences(read(folder)))


def filled(folder: Path, stem: str) -> pd.DataFrame:
    rows = results(folder)[1][stem]
    return rows[rows["seeds"] > 0].set_index("objective")


def test_the_papers_number_is_shown_with_the_difference_to_ours(plant, tmp_path):
    levels = paper.PAPER_TABLES[1].levels
    assert (len(levels), levels[0], levels[-1]) == (15, 0, 2.1)
    # Under a flat line of 0.8 from 0 to 2.1; 1.719 and 1.707 are typed from the paper's table.
    published(plant, "imdb-ut", curve=dict.fromkeys(levels, 0.8))
    (table,), long = results(tmp_path)
    mine = filled(tmp_path, "accuracy-auc")
    assert mine["paper"].to_dict() == {"constrained": 1.719, "erm": 1.707}
    assert mine["ours"].tolist() == pytest.approx([1.68, 1.68])
    assert mine["difference"].tolist() == pytest.approx([1.68 - 1.719, 1.68 - 1.707])
    assert len(long["accuracy-auc"]) == 144
    assert "1.680 (1.719, -0.039; 1 seed)" in table.markdown()
    assert r"1.680 (1.707, -0.027; 1 seed)" in table.latex()
    assert "142 of 144" in table.notes[0]


@pytest.mark.parametrize(
    ("overrides", "info", "is_the_papers"),
    [
        (["descent.alpha=0.3", "noise.gamma_train=0.3"], {}, True),
        (["evaluation.gammas=0,1", "model.layers=5"], {}, True),
        (["training.epochs=1"], {}, False),
        ([], {"layers": 4}, False),
    ],
)
def test_only_what_is_searched_may_differ(overrides, info, is_the_papers, plant, tmp_path):
    published(plant, "imdb-ut", *overrides, **info)
    assert ("accuracy-auc" in results(tmp_path)[1]) == is_the_papers


def test_the_papers_unconstrained_model_has_its_recipes_settings(trained_run, tmp_path):
    curve = {0.0: 9.0, 1.0: 30.0}
    for objective, tied in (("constrained", []), ("erm", ["model.tie_layers=true"]), ("erm", [])):
        loaded = recipes.load("avenue-dust", tied, objective=objective)
        facts: Any = {"gamma_train": 0.0, "variant": f"{objective}{tied}", "objective": objective}
        make_video_run(trained_run, tmp_path, curve, recipe=loaded, **facts)
    mine = filled(tmp_path, "average-rmse")
    # Typed from the paper's table; the untied ERM is not one of the paper's runs.
    assert mine["paper"].to_dict() == {"constrained": 21.145, "erm": 19.679}
    assert mine["best_of"].tolist() == [0, 0]


def test_retentions_are_shown_as_rates_and_losses_in_our_unit():
    def settings(file: str, row: int = 0) -> dict[str, float]:
        return paper.printed_settings(pd.read_csv(paper.folder() / file).to_dict("records")[row])

    found = [settings(f"dual_{name}.csv")["alpha"] for name in ("language", "video", "llama")]
    assert found == pytest.approx([0.226, 0.35, 0.05])
    # ViT's loss is in other units: f_0 scales with it, β against it.
    vit, factor = settings("dual_video.csv", 2), 127.5**2 / 3
    assert (vit["f_0"], vit["beta"]) == pytest.approx((202 * factor, 0.71 / factor))


# ---------------------------------------------------------------- figures


def view(folder: Path) -> charts.View:
    (found,) = charts.View(read(folder)).families()
    return found


def data_of(drawing: charts.Drawing) -> list[dict[str, Any]]:
    """The points of a drawing's lines."""
    tables = drawing.chart.to_dict()["datasets"].values()
    return [row for rows in tables for row in rows if "line" in row]


def test_an_infeasible_run_is_shown_next_to_erm_of_the_same_seed(plant, tmp_path):
    for seed in (3, 4):
        plant("erm", seed=seed)
    plant(seed=4, feasible=False)
    (drawing,) = figures.infeasible_runs(view(tmp_path))
    labels = {row["line"] for row in data_of(drawing)}
    assert {"constrained (seed 4)", "erm (seed 4)"} <= labels
    assert "erm (seed 3)" not in labels


def test_a_band_is_one_standard_deviation_over_seeds_or_one_runs_interval(plant, tmp_path):
    for seed, accuracy in enumerate((0.9, 0.7)):
        plant(seed=seed, curve={0.0: accuracy})
    plant("erm", {0.0: 0.5})
    shown = view(tmp_path)
    lines = charts.lines_of(shown.pair())
    rows = charts.averaged(shown.points, lines, "gamma", "value").set_index("line")
    several, one = rows.loc["constrained (2 seeds)"], rows.loc["erm (1 seed)"]
    spread = math.sqrt(0.02)
    assert several[["y", "low", "high"]].tolist() == pytest.approx(
        [0.8, 0.8 - spread, 0.8 + spread]
    )
    assert one[["y", "low", "high"]].tolist() == pytest.approx([0.5, 0.5 - REACH, 0.5 + REACH])


def test_constraints_kept_are_counted_by_those_of_the_constrained_run(plant, tmp_path):
    # f_0 = 1 and α = 0.1: 0.9, then 0.9 of the layer before; two standard errors of 0.01 are free.
    facts: Any = {"reference": 1.0, "rates": [0.1, 0.1, 0.1], "form": "linear"}
    ours = plant(losses=(0.91, 0.82, 0.79), **facts)
    plant_layers(ours, {GAMMA_TRAIN: (0.91, 0.82, 0.79)})
    erm = plant("erm", losses=(0.95, 0.7, 0.7), **{**facts, "rates": [0.0, 0.0, 0.0]})
    plant_layers(erm, {GAMMA_TRAIN: (0.95, 0.7, 0.7)})
    (drawing,) = figures.constraints_kept(view(tmp_path))
    kept = {row["line"]: row["y"] for row in data_of(drawing)}
    assert kept == {"constrained (1 seed)": 2, "erm (1 seed)": 1}


def test_ratios_to_f_0_are_averaged_geometrically_over_relative_depth(plant, tmp_path):
    for seed, last in enumerate((0.1, 0.4)):
        plant(seed=seed, reference=1.0, losses=(0.5, last))
    (drawing,) = figures.average_descent(charts.View(read(tmp_path)))
    mean = {row["x"]: row["y"] for row in data_of(drawing)}
    assert [mean[0.0], mean[0.5]] == pytest.approx([1, 0.5])
    assert mean[1.0] == pytest.approx(math.sqrt(0.1 * 0.4))


def test_every_figure_is_drawn_where_there_are_runs_for_it(plant, trained_run, tmp_path):
    def names(folder: Path) -> set[str]:
        found = charts.View(read(folder))
        views = {"all": [found], "recipe": found.families(), "noise": found.families()}
        return {
            figure.name
            for figure in figures.FIGURES
            for one in views[figure.of]
            for drawing in figure.draw(one)
            if drawing.chart.to_dict()
        }

    one, many, steps = tmp_path / "one", tmp_path / "many", (0.5, 0.3, 0.2)
    make_run(trained_run, one, {0.0: 0.9}, objective="erm", steps=steps)
    alone = {"descent-and-robustness", "errors-over-layers", "layer-ratios", "constraints-kept"}
    assert names(one) == alone
    facts: Any = {"verdicts": [{"layer": 1, "verdict": "violated"}], "feasible": False}
    for gamma, depth, objective in itertools.product((0.0, 0.4), (2, 3), SIDES):
        facts["overrides"] = [f"model.layers={depth}", f"noise.gamma_train={gamma}"]
        facts |= {"gamma_train": gamma, "losses": (0.6, 0.5, 0.4)[:depth], "steps": steps}
        run = make_run(trained_run, many, {0.0: 0.9, 1.0: 0.6}, objective=objective, **facts)
        plant_weights(run, [(0.1, 0.2), (-0.1, 0.3)])
    for seed, kind in enumerate(("gaussian", "uniform")):
        other: Any = {"kind": kind, "seed": seed, "objective": "erm", "name": "other"}
        make_run(trained_run, many, {0.0: 0.5}, **other)
    some = {"by-depth", "noise-kinds", "training-levels", "infeasible-runs", "grid"}
    assert names(many) == {*alone, *some, "multipliers-and-weights", "average-descent"}


def test_a_report_of_two_runs_is_few_files_and_a_page_that_opens_offline(plant, tmp_path):
    for objective in SIDES:
        plant(objective, steps=(0.5, 0.3, 0.2))
    out = tmp_path / "report"
    made = report.write([tmp_path], out, formats=("png", "svg"))
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "table.csv", "curves.csv", "tables/comparisons.md"} <= names
    assert "figures/reviews-ut-gaussian-descent-and-robustness.svg" in names
    assert len(names) <= 25
    page = made.page.read_text()
    assert made.verdict[:40] in page
    assert "vegaEmbed" in page
    assert "<script src" not in page
    # Without figures there are none on the page either, and the next report replaces the last.
    report.write([tmp_path], out, formats=())
    assert not (out / "figures").exists()
    assert "vegaEmbed" not in made.page.read_text()


# ---------------------------------------------------------------- the paper's numbers


SCRIPT = Path(__file__).parents[2] / "scripts" / "check_paper_numbers.py"
SOURCE = os.environ.get("CUDT_PAPER_SOURCE")


@pytest.mark.skipif(not SOURCE, reason="CUDT_PAPER_SOURCE: the LaTeX source of arXiv 2601.17257")
def test_every_number_is_that_of_the_papers_source():
    differences = runpy.run_path(str(SCRIPT))["differences"]
    assert differences(Path(str(SOURCE)).read_text(encoding="utf-8")) == []


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
