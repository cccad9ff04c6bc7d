"""Which runs may be compared, from planted runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from cudt import report
from cudt.report.collect import ReadRun
from cudt.report.comparable import (
    by_cell,
    cell_of,
    constraint_kind,
    matches,
    pairs,
    without_ablations,
)
from cudt.report.compare import compare
from cudt.report.sweeps import ablations, with_measures
from tests.report import make_run, with_info
from tests.report.figures import variant_of
from tests.report.test_compare import NOISE, at, constrained, erm, hows
from tests.report.test_paper_results import planted, variants

__all__ = ["constrained", "erm", "planted"]

pytestmark = pytest.mark.usefixtures("no_figures")


# ---------------------------------------------------------------- cells and groups


def test_a_cell_is_recipe_metric_depth_level_and_task(constrained, erm):
    cell = cell_of(constrained)
    assert (cell.model, cell.metric, cell.layers, cell.gamma_train, cell.dataset) == (
        "reviews-ut",
        "accuracy",
        constrained.n_layers,
        0.4,
        "reviews",
    )
    assert cell_of(erm) == cell
    assert str(cell) == f"reviews-ut on reviews, L = {cell.layers}, γ_train = 0.4"


@pytest.mark.parametrize(
    "other",
    [
        {"recipe": "other"},
        {"layers": 9},
        {"gamma_train": 0.7},
        {"metric": {"name": "RMSE", "higher_is_better": False, "of_mean": "root"}},
    ],
)
def test_runs_that_differ_in_one_of_these_are_not_comparable(other, constrained, erm):
    changed = with_info(erm, **other)
    assert cell_of(changed) != cell_of(constrained)
    assert [len(mine) for mine in by_cell([constrained, changed]).values()] == [1, 1]
    assert not pairs([constrained, changed])
    assert not matches([constrained, changed])


def test_runs_evaluated_with_the_weights_of_another_epoch_are_not_comparable(constrained, erm):
    last = [variant_of(run, "last", {"training": {"select": "last"}}) for run in (constrained, erm)]
    assert not pairs([constrained, last[1]])
    assert not matches([constrained, last[1]])
    assert len(pairs(last)) == len(matches(last)) == 1
    assert str(cell_of(last[0])) == f"{cell_of(constrained)}, last epoch"


# ---------------------------------------------------------------- pairs and matches


def test_every_objective_is_paired_with_erm_and_constrained_with_all_others(constrained, erm):
    outside = with_info(constrained, objective="supervised")
    found = [(pair.ours[0], pair.baseline[0]) for pair in pairs([constrained, outside, erm])]
    assert [(ours.objective, other.objective) for ours, other in found] == [
        ("constrained", "supervised"),
        ("constrained", "erm"),
        ("supervised", "erm"),
    ]


def test_erm_is_matched_with_the_constrained_runs_of_its_model_settings(constrained, erm):
    wide = {"model": {"width": 32}}
    other_erm, other = variant_of(erm, "wide", wide), variant_of(constrained, "wide", wide)
    assert matches([constrained, erm, other_erm]) == [[constrained, erm], [constrained, other_erm]]
    assert matches([constrained, other, erm, other_erm]) == [[constrained, erm], [other, other_erm]]


def test_each_kind_of_constraints_is_compared_with_erm_on_its_own(constrained, erm):
    ladder = variant_of(constrained, "ladder", {"descent": {"form": "ladder", "gradient": "full"}})
    stricter = variant_of(constrained, "stricter", {"descent": {"alpha": 0.3}})
    assert [constraint_kind(run) for run in (constrained, ladder, stricter, erm)] == [
        "",
        "ladder",
        "",
        "",
    ]
    assert matches([constrained, ladder, stricter, erm]) == [
        [constrained, stricter, erm],
        [ladder, erm],
    ]


def test_settings_that_a_sweep_repeats_on_several_seeds_are_compared_on_their_own(constrained, erm):
    first, second = variants(constrained, 0.2, 0.1)
    first, second = at(first, "a"), at(second, "b")
    of_seeds, search = sweep_of(first, second, is_search=False), sweep_of(first, second)
    runs = with_measures([first, second, erm], [of_seeds])
    assert [[run.name for run in match] for match in matches(runs)] == [
        [one.name, erm.name] for one in (first, second)
    ]
    assert [hows(compare(match, NOISE)) for match in matches(runs)] == [["1 seed", "1 seed"]] * 2
    chosen = with_measures([first, second, erm], [search])
    assert [len(match) for match in matches(chosen)] == [3]


# ---------------------------------------------------------------- ablations


@dataclass(frozen=True)
class SweepInfo:
    measure: str = "metric"


@dataclass(frozen=True)
class Trials:
    """A sweep, as far as its runs go."""

    finished: pd.DataFrame
    is_search: bool
    info: SweepInfo = SweepInfo()


def sweep_of(*runs: ReadRun, is_search: bool = True) -> Any:
    return Trials(pd.DataFrame({"run": [run.name for run in runs]}), is_search)


def test_a_sweep_of_one_objective_is_an_ablation_unless_another_compares_its_runs(constrained, erm):
    # The names of folders say nothing about objectives.
    first, second, third = at(constrained, "a"), at(constrained, "b"), at(erm, "c")
    ablation, search = sweep_of(first, second), sweep_of(second, third)
    runs = [first, second, third]
    assert ablations([ablation, search], runs) == {first.name}
    assert ablations([search], runs) == set()
    # Runs that the report does not have are no part of it.
    assert ablations([ablation], [second]) == {second.name}


def test_runs_of_an_ablation_do_not_join_the_search_of_their_cell(constrained, erm):
    searched, ablated = variants(constrained, 0.2, 0.1)
    ablated = at(ablated, "constrained-ablated")
    kept = without_ablations([searched, ablated, erm], {ablated.name})
    assert kept == [searched, erm]
    assert hows(compare(kept, NOISE)) == ["1 seed", "1 seed"]


def test_ablations_are_in_the_tables_of_a_report_but_not_in_its_comparisons(
    trained_run, tmp_path, monkeypatch
):
    folder = tmp_path / "runs" / "reviews-ut"
    curves = {"constrained": {0.0: 0.9, 1.0: 0.6}, "erm": {0.0: 0.9, 1.0: 0.5}}
    for objective, values in curves.items():
        make_run(trained_run, folder, values, objective=objective)
    ablated = make_run(trained_run, folder, {0.0: 0.9, 1.0: 0.8}, overrides=["descent.alpha=0.4"])
    monkeypatch.setattr(
        report.sweeps, "ablations", lambda searched, runs: {f"reviews-ut/{ablated.path.name}"}
    )
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    assert len(made.table) == 3
    table = pd.read_csv(tmp_path / "report" / "tables" / "accuracy-auc-other.csv").set_index(
        "objective"
    )
    assert table["best_of"].tolist() == [0, 0]
    # The trapezoid of 0.9 and 0.6; the ablation's would be of 0.8.
    assert table.loc["constrained", "ours"] == pytest.approx(0.75)
