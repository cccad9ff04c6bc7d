"""scripts/results_*.py, and docs/results.md as it is: every table of the page is what results/tables/ says."""

from __future__ import annotations

import importlib
import re
import shutil
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from tests.report import make_scored_run
from tests.test_dinov2_weights import SCRIPTS

PAGE = SCRIPTS.parent / "docs" / "results.md"


@pytest.fixture
def results_page(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("results_page")


@pytest.fixture
def results_blocks(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("results_blocks")


@pytest.fixture
def results_tables(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("results_tables")


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
    pair = {
        **rows[0],
        "against": "erm",
        "against_variant": "x0",
        "quantity": "ood_mean",
        "gamma_train": 0.4,
        "perturbation": "gaussian",
    }
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
        "| runs | seeds | ID | OOD | AUC, γ 0 to 2.1 | OOD − erm |",
        "| --- | --- | --- | --- | --- | --- |",
        "| erm | 3 | 0.800 | 0.700 | 1.500 |  |",
        "| constrained α=0.1 | 3 | 0.800 | 0.700 | 1.600 | **+0.020 (+0.010 to +0.030)** |",
    ]
    assert made[8:] == ["", "<!-- end -->", "after"]
    assert results_page.rendered("\n".join(made), tables) == "\n".join(made)


def test_the_runs_of_a_sweep_are_compared_setting_by_setting(results_blocks, tables):
    """Two settings with an ERM of their own each; the paired table has both differences, the wrong one first."""
    table = pd.read_csv(tables / "table.csv", index_col=0)
    second = table[table["recipe"] == "a"].assign(variant=["y1", "y0"])
    pd.concat([table, second]).to_csv(tables / "table.csv")
    paired = pd.read_csv(tables / "paired.csv", index_col=0)
    crossed = paired.assign(against_variant="y0", difference=0.5)
    second = paired.assign(variant="y1", against_variant="y0", low=-0.01)
    pd.concat([crossed, paired, second]).to_csv(tables / "paired.csv")
    cells = [("x0", "erm", "model.tie=false"), ("x1", "full", "model.tie=false"), ("y0", "erm", "model.tie=true")]
    trials = [{"variant": variant, "arm": arm, "setting": setting} for variant, arm, setting in cells]
    trials += [{"variant": "y1", "arm": "full", "setting": "model.tie=true"}]
    pd.DataFrame(trials).assign(recipe="a", search="sweep").to_csv(tables / "trials.csv")
    made = results_blocks.compare(tables, {"search": "sweep"}).splitlines()[2:]
    assert [row.split(" | ")[0] for row in made] == [
        "| erm, tie false",
        "| full, tie false",
        "| erm, tie true",
        "| full, tie true",
    ]
    (summed,) = results_blocks.summary(tables, {"search": "sweep", "setting": "tie=true"}).splitlines()[2:]
    assert summed.startswith("| a | full, tie true | 3 | accuracy | 0.700 |")
    assert "| **+0.020 (+0.010 to +0.030)** |" in made[1]
    assert "| +0.020 (-0.010 to +0.030) |" in made[3]
    assert results_blocks.compare(tables, {"search": "another"}) == "*No runs yet.*"


def test_a_sweep_of_one_arm_is_named_by_its_settings(results_blocks, tables):
    cells = {"x1": "descent.alpha=0.1", "y1": "descent.alpha=0.2"}
    rows = [{"variant": variant, "setting": setting} for variant, setting in cells.items()]
    pd.DataFrame(rows).assign(recipe="a", arm="full", search="alpha").to_csv(tables / "trials.csv")
    (row,) = results_blocks.compare(tables, {"search": "alpha"}).splitlines()[2:]
    assert row.startswith("| alpha 0.1 | 3 |")
    assert "**+0.020 (+0.010 to +0.030)**" in row


def test_baselines_of_a_sweep_without_them_are_named(results_blocks, tables):
    table, paired = (pd.read_csv(tables / f"{name}.csv") for name in ("table", "paired"))
    longer = table.query("variant == 'x0'").assign(variant="x3")
    pd.concat([table, longer]).to_csv(tables / "table.csv")
    pd.concat([paired.assign(against_variant="x3", difference=0.5), paired]).to_csv(tables / "paired.csv")
    arms = [("x1", "full", "alpha"), ("x0", "erm", "forms"), ("x3", "erm", "epochs")]
    trials = pd.DataFrame(arms, columns=["variant", "arm", "search"])
    trials.assign(recipe="a", setting="descent.alpha=0.1").to_csv(tables / "trials.csv")
    with pytest.raises(ValueError, match="several groups of erm beside it: name their sweep in beside="):
        results_blocks.compare(tables, {"search": "alpha"})
    (row,) = results_blocks.compare(tables, {"search": "alpha", "beside": "forms"}).splitlines()[2:]
    assert "**+0.020 (+0.010 to +0.030)**" in row
    assert "+0.500" in results_blocks.compare(tables, {"search": "alpha", "beside": "epochs"})


def test_differences_at_each_level_are_those_of_the_report(results_blocks, tables):
    paired = pd.read_csv(tables / "paired.csv")
    at_levels = [paired.assign(quantity="metric", gamma=gamma, difference=-gamma) for gamma in (2.0, 0.5)]
    pd.concat([paired, *at_levels]).to_csv(tables / "paired.csv")
    assert results_blocks.apart(tables, {"recipe": "a"}).splitlines() == [
        "| γ | constrained α=0.1 − erm |",
        "| --- | --- |",
        "| 0.5 | **-0.500 (+0.010 to +0.030)** |",
        "| 2 | **-2.000 (+0.010 to +0.030)** |",
    ]
    assert results_blocks.apart(tables, {"recipe": "none"}) == "*No runs yet.*"


def test_groups_with_different_training_noise_are_compared_seed_by_seed(
    results_page, results_tables, trained_run, tmp_path
):
    """Constrained is better by .2 for one seed and .1 for the other: Student's t at one degree of freedom is 12.7."""
    out, tables = tmp_path / "out", tmp_path / "tables"
    tables.mkdir()
    trials, groups, curves = [], [], []
    for objective, gamma_train, scores in (("constrained", 0.3, (0.8, 0.8)), ("erm", 0.9, (0.6, 0.7))):
        for seed, score in enumerate(scores):
            run = make_scored_run(
                trained_run,
                out,
                {0.0: np.full(40, score), 1.0: np.full(40, score)},
                objective=objective,
                seed=seed,
                overrides=(f"noise.gamma_train={gamma_train}",),
            )
            variant, path = run.info().variant, str(run.path.relative_to(out))
            setting = f"noise.gamma_train={gamma_train}"
            trials.append({"search": "s", "setting": setting, "arm": objective, "variant": variant, "run": path})
        group = {"recipe": "reviews-ut", "objective": objective, "variant": variant, "perturbation": "gaussian"}
        groups.append({**group, "gamma_train": gamma_train, "evaluated": 2, "label": objective})
        curves += [{**group, "gamma": gamma, "mean": sum(scores) / 2} for gamma in (0.0, 1.0)]
    pd.DataFrame(trials).assign(recipe="reviews-ut").to_csv(tables / "trials.csv")
    pd.DataFrame(groups).to_csv(tables / "table.csv")
    pd.DataFrame(curves).to_csv(tables / "curves.csv")
    page = "<!-- versus: search=s ours=constrained@0.3 theirs=erm@0.9 -->\n<!-- end -->"
    assert "No runs yet" in results_page.rendered(page, tables)
    results_tables.write_versus(out, results_page.compared(page, tables), tables)
    # The standard error of .2 and .1 is .05.
    assert results_page.rendered(page, tables).splitlines()[2:7] == [
        "| γ | erm, γ_train = 0.9 | constrained, γ_train = 0.3 | difference |",
        "| --- | --- | --- | --- |",
        "| 0 | 0.650 | 0.800 | +0.150 (-0.485 to +0.785) |",
        "| 1 | 0.650 | 0.800 | +0.150 (-0.485 to +0.785) |",
        "| mean above 0.3 | 0.650 | 0.800 | +0.150 (-0.485 to +0.785) |",
    ]
    assert [*results_page.compared(page.replace("erm@0.9", "erm@0.5"), tables)] == []


def test_the_last_weights_are_compared_with_the_best(results_blocks, results_tables, trained_run, tmp_path):
    """Last minus best is −.1 and −.2 for constrained; with the last weights it is ahead of ERM by .1 and .0."""
    out, tables = tmp_path / "out", tmp_path / "tables"
    tables.mkdir()
    trials, groups, epochs = [], [], ", ".join(2 * [str(trained_run.finished_info().best.epoch)])
    for objective, best, last in (("erm", (0.6, 0.6), (0.6, 0.6)), ("constrained", (0.8, 0.8), (0.7, 0.6))):
        for seed in (0, 1):
            levels = {gamma: np.full(40, best[seed]) for gamma in (0.0, 1.0)}
            run = make_scored_run(trained_run, out, levels, objective=objective, seed=seed)
            other = make_scored_run(trained_run, tmp_path / "last", {g: np.full(40, last[seed]) for g in levels})
            shutil.move(other.path, run.with_weights("last").results)
            variant, path = run.info().variant, str(run.path.relative_to(out))
            trials.append({"search": "s", "setting": "x=1", "arm": objective, "variant": variant, "run": path})
        group = {"recipe": "reviews-ut", "objective": objective, "variant": variant, "label": objective}
        groups.append({**group, "perturbation": "gaussian", "evaluated": 2})
    pd.DataFrame(trials).assign(recipe="reviews-ut").to_csv(tables / "trials.csv")
    pd.DataFrame(groups).to_csv(tables / "table.csv")
    assert results_blocks.weights(tables, {"search": "s"}) == "*No runs yet.*"
    results_tables.write_weights(out, tables)
    assert results_blocks.weights(tables, {"search": "s"}).splitlines() == [
        "| runs | best epoch | ID, best | ID, last | OOD, best | OOD, last | OOD, last − best | OOD − erm, last |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        f"| erm | {epochs} | 0.600 | 0.600 | 0.600 | 0.600 | +0.000 (+0.000 to +0.000) |  |",
        f"| constrained | {epochs} | 0.800 | 0.650 | 0.800 | 0.650 | -0.150 (-0.785 to +0.485) "
        "| +0.050 (-0.585 to +0.685) |",
    ]


def test_bias_is_paired_over_seeds(results_blocks, tables):
    """Differences in unbiased accuracy of 0.03 and 0.05: 0.04 ± t(1)·0.01, which is 12.706·0.01."""
    values = {("x0", 0): 0.70, ("x0", 1): 0.72, ("x1", 0): 0.73, ("x1", 1): 0.77}
    rows = [
        {"recipe": "a", "variant": variant, "seed": seed, "gamma": 1.0, "distribution": "OOD", "unbiased": value}
        for (variant, seed), value in values.items()
    ]
    noisy = pd.DataFrame(rows).assign(accuracy=0.6, bias=0.5)
    clean = noisy.assign(gamma=0.0, distribution="ID", accuracy=0.81, unbiased=0.8)
    pd.concat([noisy, clean]).to_csv(tables / "class_bias.csv")
    made = results_blocks.bias(tables, {"recipe": "a"}).splitlines()
    assert made[2].startswith("| erm | 0.600 | 0.710 | 0.210 | 0.090 |")
    assert results_blocks.bias(tables, {"recipe": "none"}) == "*No runs yet.*"
    assert "| +0.040 (-0.087 to +0.167) |" in made[3]
    assert "| +0.50 |" in made[3]


def test_bias_of_runs_on_other_test_data_has_the_variant_of_the_report(results_blocks, tables):
    table = pd.read_csv(tables / "table.csv").query("recipe == 'a'")
    table.assign(variant=table["variant"] + "-2").to_csv(tables / "table.csv")
    row = {"recipe": "a", "variant": "x0-2", "seed": 0, "gamma": 1.0, "distribution": "OOD"}
    pd.DataFrame([row]).assign(accuracy=0.6, unbiased=0.7, bias=0.5).to_csv(tables / "class_bias.csv")
    # The other group has no recalls.
    (made,) = results_blocks.bias(tables, {"recipe": "a"}).splitlines()[2:]
    assert made == "| erm | 0.600 | 0.700 | nan | nan | +0.50 |"


def test_early_exits_are_means_over_seeds(results_blocks, tables):
    rows = [{"accuracy": 0.7, "mean_depth": 4.0}, {"accuracy": 0.8, "mean_depth": 6.0}]
    shared = {"recipe": "a", "variant": "x0", "gamma": 0.4, "full_accuracy": 0.76}
    pd.DataFrame(rows).assign(**shared).to_csv(tables / "exits.csv")
    assert results_blocks.exits(tables, {"recipe": "a"}).splitlines() == [
        "| runs | accuracy, γ = 0.4 | layers, γ = 0.4 |",
        "| --- | --- | --- |",
        "| erm | 0.750 (-1.0) | 5.0 |",
        "| constrained α=0.1 |  |  |",
    ]


def test_descent_is_read_from_the_losses_and_weights_of_each_run(results_blocks, results_tables, tables, tmp_path):
    """Losses .6 .7 .4 .5 from f_0 = .65: layers 1 and 3 fall, layer 3 is the best; one of two updates has w < 0."""
    folder = tmp_path / "out" / "a" / "run"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"reference": 0.65}')
    (folder / "ood.csv").write_text("")
    losses = pd.DataFrame({"layer": [1, 2, 3, 4], "loss": [0.6, 0.7, 0.4, 0.5]})
    losses.assign(split="test", perturbation="gaussian", gamma=0.4).to_csv(folder / "layers.csv")
    weights = pd.DataFrame({"step": [1, 1, 2, 2], "value": [0.1, 1.0, -0.1, 1.0]})
    weights.assign(split="train", name="weight").to_csv(folder / "history.csv")
    trial = pd.Series({"search": "s", "recipe": "a", "variant": "x0", "run": "a/run", "score": 1.0})
    found = results_tables._descent(tmp_path / "out", trial)
    assert found[["falling", "best_layer", "negative"]].to_numpy().tolist() == [[0.5, 3, 0.5]]
    assert found["gap"].tolist() == pytest.approx([0.1])
    pd.concat([found, found.assign(run="a/other", best_layer=4)]).to_csv(tables / "descent.csv")
    assert (
        results_blocks.layers(tables, {"recipe": "a", "at": "0.4,2"}).splitlines()[2]
        == "| erm | 50% | 50% | 3 to 4 | 0.100 |"
    )
    assert results_tables._descent(tmp_path / "out", pd.Series({"run": "none"})) is None


def test_privacy_is_shown_for_one_token_with_the_metric_of_each_group(results_blocks, tables):
    rows = [
        {"variant": variant, "gamma": gamma, "unit": unit, "epsilon": epsilon, "value": value}
        for variant, value in (("x0", 0.6), ("x1", 0.7))
        for gamma, unit, epsilon in ((0.0, "token", float("inf")), (1.0, "token", 100 * value), (1.0, "text", 9e9))
    ]
    pd.DataFrame(rows).assign(recipe="a").to_csv(tables / "privacy.csv")
    assert results_blocks.privacy(tables, {"recipe": "a"}).splitlines() == [
        "| γ | ε of a token | erm | constrained α=0.1 |",
        "| --- | --- | --- | --- |",
        "| 1 | 60 to 70 | 0.600 | 0.700 |",
    ]


def test_other_data_are_compared_within_a_setting(results_blocks, tables):
    row = {"recipe": "a", "data": "there", "objective": "constrained", "variant": "x1", "mean": 3.0, "against": "erm"}
    row |= {"against_variant": "x0", "against_mean": 4.0, "difference": -1.0, "low": -1.5, "high": -0.5}
    pd.DataFrame([{**row, "perturbation": "gaussian"}]).to_csv(tables / "other-data.csv")
    assert results_blocks.other(tables, {"recipe": "a"}).splitlines()[2:] == [
        "| there | erm | 4.000 |  |",
        "| there | constrained α=0.1 | 3.000 | **-1.000 (-1.500 to -0.500)** |",
    ]


def test_a_table_of_the_report_is_shown_without_its_title(results_blocks, tables):
    (tables / "early-exit.md").write_text("# Early exit\n\n| rule |\n| --- |\n| patience |\n", encoding="utf-8")
    assert results_blocks.report(tables, {"table": "early-exit"}) == "| rule |\n| --- |\n| patience |"
    assert results_blocks.report(tables, {"table": "missing"}) == "*No runs yet.*"


def test_the_papers_gains_are_those_of_its_table(results_blocks, tables):
    """DistilBERT on IMDb: the mean of six differences, added up by hand."""
    row = next(line for line in results_blocks.paper(tables, {}).splitlines() if "DistilBERT" in line)
    paper = pd.read_csv(SCRIPTS.parent / "data" / "paper" / "accuracy_auc.csv")
    mine = paper[(paper["model"] == "DistilBERT") & (paper["dataset"] == "IMDb")]
    sides = [sorted(zip(side["gamma_train"], side["value"], strict=True)) for _, side in mine.groupby("objective")]
    gains = [ours - theirs for (_, ours), (_, theirs) in zip(*sides, strict=True)]
    assert len(gains) == 6
    assert f"| {sum(gains) / 6:+.3f} ({min(gains):+.3f} to {max(gains):+.3f}) |" in row


def test_an_interval_with_zero_is_not_bold(results_blocks, tables):
    paired = pd.read_csv(tables / "paired.csv").assign(low=-0.01)
    paired.to_csv(tables / "paired.csv")
    assert "| +0.020 (-0.010 to +0.030) |" in results_blocks.compare(tables, {"recipe": "a"})


def test_nothing_is_invented_where_there_are_no_runs(results_blocks, tables):
    assert results_blocks.compare(tables, {"recipe": "none"}) == "*No runs yet.*"
