from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cudt import report
from cudt.report.figures import choose
from tests.report import make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of

CURVE = {0.0: 1.0, 1.0: 0.8}


def trained_at(gamma: float) -> list[str]:
    return [f"noise.gamma_train={gamma}"]


def test_the_pair_is_at_the_highest_gamma_train_that_both_objectives_have(trained_run, tmp_path):
    for gamma, objective in (
        (0.3, "constrained"),
        (0.3, "erm"),
        (0.6, "constrained"),
        (0.6, "erm"),
        (0.9, "erm"),
    ):
        make_run(
            trained_run,
            tmp_path,
            CURVE,
            objective=objective,
            overrides=trained_at(gamma),
            gamma_train=gamma,
        )
    chosen = choose.pair(groups_of(tmp_path), "gaussian")
    assert [(group.objective, group.gamma_train) for group in chosen] == [
        ("constrained", 0.6),
        ("erm", 0.6),
    ]


def test_the_pair_is_at_the_papers_gamma_train_where_there_is_one(trained_run, tmp_path):
    for gamma, objective in itertools.product((0.2, 0.8), ("constrained", "erm")):
        make_run(
            trained_run,
            tmp_path,
            CURVE,
            objective=objective,
            overrides=trained_at(gamma),
            gamma_train=gamma,
        )
    groups = groups_of(tmp_path)
    # Without another level, that of the paper's Figure 1.
    assert [
        choose.pair(groups, "gaussian", wanted)[0].gamma_train for wanted in (0.2, 0.13, None)
    ] == [0.2, 0.8, 0.2]


def test_of_several_variants_the_best_run_on_validation_data_is_shown_alone(trained_run, tmp_path):
    losses = {0.1: 0.6, 0.2: 0.9, 0.3: 0.5, 0.4: float("nan")}
    for alpha, loss in losses.items():
        for seed in range(1 if alpha == 0.1 else 2):
            best = {"epoch": 1, "validation_loss": loss + 0.01 * seed}
            make_run(
                trained_run,
                tmp_path,
                CURVE,
                seed=seed,
                overrides=[f"descent.alpha={alpha}"],
                best=best,
            )
    (chosen,) = choose.pair(groups_of(tmp_path), "gaussian")
    assert chosen.settings["descent.alpha"] == 0.3
    assert ([run.seed for run in chosen.runs], chosen.best_of, chosen.seeds("gaussian")) == (
        [0],
        7,
        1,
    )


def full_scale(trained_run, folder: Path) -> set[str]:
    """Runs as `--scale full` leaves them for imdb-roberta; returns the names of those of the α
    ablation.

    A search of two trials on each side, and three values of α on three seeds; α = 0 has the lowest
    validation loss.
    """
    for alpha in (0.1, 0.2):
        best, overrides = {"validation_loss": 0.5 + alpha}, [f"descent.alpha={alpha}"]
        make_run(trained_run, folder, {0.0: 0.9, 1.0: 0.7 - alpha}, overrides=overrides, best=best)
    for rate in (0.01, 0.02):
        best, overrides = {"validation_loss": 0.5 + rate}, [f"training.learning_rate={rate}"]
        make_run(
            trained_run,
            folder,
            {0.0: 0.9, 1.0: 0.5 - rate},
            objective="erm",
            overrides=overrides,
            best=best,
        )
    ablated = [
        make_run(trained_run, folder, {0.0: 0.9, 1.0: 0.4}, seed=seed, overrides=[f"descent.alpha={alpha}"],
                 best={"validation_loss": alpha})
        for alpha, seed in itertools.product((0.0, 0.4, 0.45), range(3))
    ]  # fmt: skip
    return {f"{folder.name}/{run.path.name}" for run in ablated}


def test_figures_show_what_the_tables_compare_and_ablations_only_in_their_own(
    trained_run, tmp_path, monkeypatch, drawn
):
    ablated = full_scale(trained_run, tmp_path / "runs" / "reviews-ut")
    monkeypatch.setattr(report.sweeps, "ablations", lambda searched, runs: ablated)
    monkeypatch.setattr(report.page, "render", lambda *parts: "")
    report.write([tmp_path / "runs"], tmp_path / "report")
    titles = [
        "descent and robustness",
        "ratios",
        "errors",
        "ablation",
        "ablation curves",
        "infeasible",
        "average",
    ]
    figures = dict(zip(titles, drawn, strict=True))
    curves = named_lines(figures["descent and robustness"].axes[1])
    assert {name: points_of(line)[-1][1] for name, line in curves.items()} == pytest.approx(
        {"constrained (best of 2)": 0.6, "erm (best of 2)": 0.49}
    )
    for name in ("ratios", "errors"):
        assert legend_of(figures[name])[:2] == ["constrained (best of 2)", "erm (best of 2)"]
    assert figures["average"].axes[0].get_title().endswith("(2 constrained, 2 erm)")
    # One point for each value of α that shares its other settings: all five.
    assert len(figures["ablation"].axes[0].containers[0].lines[0].get_xdata()) == 5


def test_a_series_differs_in_one_setting_only(trained_run, tmp_path):
    for alpha in (0.3, 0.1, 0.2):
        make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha}"])
    make_run(trained_run, tmp_path, CURVE, overrides=["descent.alpha=0.4", "training.epochs=7"])
    make_run(trained_run, tmp_path, None, overrides=["descent.alpha=0.5"])
    found = choose.series(groups_of(tmp_path), "descent.alpha", "gaussian")
    assert [group.settings["descent.alpha"] for group in found] == [0.1, 0.2, 0.3]
    assert choose.series(groups_of(tmp_path), "descent.dual.optimizer", "gaussian") == []


def test_two_values_or_two_changed_settings_are_no_ablation(trained_run, tmp_path):
    for index in range(4):
        settings = [f"descent.alpha={0.1 * index}", f"training.epochs={index + 1}"]
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=settings)
    make_run(
        trained_run, tmp_path, {0.0: 1.0}, overrides=["descent.alpha=0.35", "training.epochs=1"]
    )
    assert choose.ablated(groups_of(tmp_path), "gaussian") == {}
