from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cudt.config.recipe import NamedRecipe
from cudt.report import layouts, page, paper, tables
from cudt.report.collect import Collected, collect
from cudt.report.figures import Figure
from cudt.report.groups import read_groups
from cudt.report.page import Material
from cudt.runs.run import Run
from tests.report import GAMMA_TRAIN, make_run, make_video_run, save_samples
from tests.report.figures import variant_of
from tests.report.test_paper import scored

EVIL = "<script>alert(1)</script>"
CURVES = {"constrained": {0.0: 0.9, GAMMA_TRAIN: 0.8, 1.0: 0.7}, "erm": {0.0: 0.95, GAMMA_TRAIN: 0.75, 1.0: 0.5}}


class Parsed(HTMLParser):
    """Tags, what they point at, and the visible text of a page; scripts and styles apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.text += data


@pytest.fixture(scope="module", autouse=True)
def _without_plotly():
    """Megabytes that no test here is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "get_plotlyjs", lambda: "/* plotly */")
        yield


def material(found: Path | Collected, figures: list[Figure] | None = None) -> Material:
    """What a page is made of, without figures, which take longest."""
    collected = collect([found]) if isinstance(found, Path) else found
    runs = collected.runs
    curves = tables.curves(runs)
    laid_out = [(layouts.of_results(table), table.n_filled > 0) for table in paper.result_tables(runs)]
    groups = read_groups(runs, curves)
    return Material(collected, runs, groups, tables.summary(runs), laid_out, figures or [], [])


def rendered(folder: Path) -> str:
    return page.render(material(folder))


@pytest.fixture(scope="module")
def pair(trained_run, tmp_path_factory) -> Path:
    """A folder with a constrained and an ERM run."""
    out = tmp_path_factory.mktemp("pair")
    for objective, curve in CURVES.items():
        make_run(trained_run, out, curve, objective=objective)
    return out


@pytest.fixture(scope="module")
def pair_page(pair) -> str:
    return rendered(pair)


# ---------------------------------------------------------------- what a page has


def test_the_page_points_at_nothing_but_itself(pair_page):
    parsed = Parsed(pair_page)
    assert all(link.startswith(("#", "data:")) for link in parsed.links), parsed.links
    assert not {"iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    # In plotly's own script there are addresses, which test_browser.py sees never asked for.
    assert not re.search(r"https?://|@import|url\(", pair_page)


def test_the_page_shows_the_numbers_of_the_table(pair, pair_page):
    text = Parsed(pair_page).text
    table = tables.summary(collect([pair]).runs)
    for column in ("id_mean", "ood_mean", "auc", "validation_loss"):
        for value in table[column]:
            assert f"{value:.4f}" in text
    assert "γ 0 to 1" in text


def test_the_page_shows_every_run_with_its_verdicts_settings_and_commands(pair, pair_page):
    text = Parsed(pair_page).text
    assert "2 finished runs of 1 recipe ·" in text
    for run in collect([pair]).runs:
        command = f"cudt eval-ood {run.run.path} --perturbation gaussian --gammas 0,0.4,1 --noise-seed 0"
        assert f"{run.info.command}\n{command}" in text
        assert run.run.recipe.text() in text
        for verdict in run.info.verdicts:
            assert f"{verdict.violation:.4f}" in text


def test_the_numbers_of_the_charts_are_in_the_page(pair_page):
    (data,) = [json.loads(script) for script in Parsed(pair_page).scripts if script.startswith("[{")]
    assert [section["kinds"]["gaussian"]["curves"][1]["y"] for section in data] == [[0.95, 0.75, 0.5]]


def test_the_page_shows_the_mean_of_errors(trained_run, tmp_path):
    make_video_run(trained_run, tmp_path, {0.0: 10.0, 1.0: 20.0})
    html = rendered(tmp_path)
    assert "<td>15.0000</td>" in html
    assert "Metric: RMSE." in Parsed(html).text


def test_nothing_is_left_out_of_a_whole_report(pair_page):
    assert "Left out" not in pair_page
    assert "Looked at" not in pair_page
    assert "Completions" not in pair_page


def test_tables_with_nothing_of_ours_are_closed(pair_page):
    opened = re.findall(r"<details( open)?><summary>(.*?)</summary>", pair_page)
    found = {title: bool(is_open) for is_open, title in opened}
    assert not found["Average RMSE over the levels of Gaussian noise"]
    assert found["Area under accuracy against γ of Gaussian noise, other recipes"]


# ---------------------------------------------------------------- texts of others


def complete(run: Run, name: str, content: Any) -> Path:
    path = run.path / "completions" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_names_and_texts_are_shown_and_never_run(trained_run, tmp_path):
    changes: dict[str, Any] = {"name": EVIL, "command": f"cudt {EVIL}"}
    run = make_run(trained_run, tmp_path, CURVES["constrained"], **changes)
    claims = run.recipe.settings.model_copy(update={"reproduces": f"Claims {EVIL}"})
    (run.path / "recipe.yaml").write_text(NamedRecipe(EVIL, claims).text())
    complete(run, "<img onerror=alert(3)>.json", [{"instruction": f"Why {EVIL}?", "output": f"So {EVIL}"}])
    make_run(trained_run, tmp_path, CURVES["erm"], **changes, objective="erm")
    broken = make_run(trained_run, tmp_path, None, objective="supervised", status="failed", reason=EVIL)
    save_samples(run, "<img onerror=alert(1)>")
    html = rendered(tmp_path)
    parsed = Parsed(html)
    assert EVIL not in html
    assert "<img onerror" not in html
    assert "onerror" not in parsed.attributes
    # Those of the page itself: the data, plotly, and page.js.
    assert parsed.tags.count("script") == 3
    told = [f"cudt {EVIL}", f"{broken.path}: failed ({EVIL})", f"Why {EVIL}?", f"So {EVIL}", f"Claims {EVIL}"]
    for text in [*told, "<img onerror=alert(1)>", "<img onerror=alert(3)>", f"{EVIL} on reviews"]:
        assert text in parsed.text, text


def test_values_of_settings_are_shown_as_they_are_and_never_run(pair):
    constrained, erm = collect([pair]).runs
    # A dollar begins a formula in Matplotlib, not here.
    values = ["<script>alert(1)", "a$b$ <b>"]
    variants = [variant_of(constrained, f"v{n}", {"noise": {"kind": value}}) for n, value in enumerate(values)]
    html = page.render(material(Collected([*variants, erm], [])))
    parsed = Parsed(html)
    assert parsed.tags.count("script") == 3
    (data,) = [json.loads(script) for script in parsed.scripts if script.startswith("[{")]
    names = {group["name"] for group in data[0]["groups"]}
    assert names == {"constrained kind=<script>alert(1)", "constrained kind=a$b$ <b>", "erm"}
    for name in names:
        assert name in parsed.text


def test_what_is_left_out_stands_on_the_page(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVES["constrained"])
    make_run(trained_run, tmp_path, {0.0: 0.9}, seed=5, status="failed", reason="loss not finite")
    html = rendered(tmp_path)
    assert "failed (loss not finite)" in html
    assert "Left out or not whole (1)" in html


def test_damaged_completions_and_histories_are_told_and_the_rest_is_shown(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, CURVES["constrained"])
    broken = complete(run, "a.json", '[{"instr')
    complete(run, "b.json", [{"instruction": "Why?", "output": "Because."}])
    (run.path / "history.csv").write_text("step,ep")
    text = Parsed(rendered(tmp_path)).text
    assert f"{broken}: damaged (JSONDecodeError)" in text
    assert "history.csv: damaged" in text
    assert "Left out or not whole (2)" in text
    assert "Because." in text


def test_pictures_that_do_not_fit_are_told(trained_run, tmp_path, monkeypatch):
    save_samples(make_run(trained_run, tmp_path, CURVES["constrained"]), "a", "b")
    monkeypatch.setattr("cudt.report.exhibits._MOST_BYTES", 100)
    text = Parsed(rendered(tmp_path)).text
    assert "2 pictures are not on this page, which would be too large" in text
    assert "Looked at" in text


def test_the_same_examples_and_answers_stand_side_by_side(trained_run, tmp_path):
    for objective, curve in CURVES.items():
        run = make_run(trained_run, tmp_path, curve, objective=objective)
        save_samples(run, "gaussian-a")
        complete(run, "clean.json", [{"instruction": "Why?", "output": f"{objective} knows"}])
    html = rendered(tmp_path)
    text = Parsed(html).text
    assert html.count("data:image/gif;base64,") == 2
    assert text.index("constrained knows") < text.index("erm knows")
    assert text.count("Why?") == 1


# ---------------------------------------------------------------- constrained against unconstrained


def compared(folder: Path) -> list[dict[str, Any]]:
    return page.comparisons(material(folder))


def test_the_comparison_is_that_of_the_summary_and_says_why_there_is_no_interval(pair, pair_page):
    (row,) = compared(pair)
    assert row["recipe"] == "reviews-ut"
    assert row["label"] == "constrained"
    assert row["setting"].endswith("γ_train = 0.4, gaussian")
    assert (row["metric"], row["arrow"]) == ("accuracy", "↑")
    assert row["id_mean_constrained"] == pytest.approx(0.85)
    assert row["id_mean_erm"] == pytest.approx(0.85)
    assert (row["ood_mean_constrained"], row["ood_mean_erm"]) == (0.7, 0.5)
    assert row["difference"] == pytest.approx(0.2)
    assert (row["unit"], row["better"]) == ("", "")
    assert "no scores of single examples" in row["reason"]
    assert page.verdict([row]) == "Out of distribution, of one comparison: 1 without an interval."
    assert row["runs"] == "1 seed"
    text = Parsed(pair_page).text
    assert "+0.2" in text
    assert "Why 1 has no interval" in text
    assert row["reason"] in text


@pytest.mark.parametrize("better", ["constrained", "erm", None])
def test_the_better_one_is_bold(better, trained_run, tmp_path):
    scored(trained_run, tmp_path, better)
    (row,) = compared(tmp_path)
    assert row["better"] == (better or "")
    assert row["unit"] == "examples"
    html = rendered(tmp_path)
    assert ("<b>" in html.split("<nav")[0]) == bool(better)


def test_the_verdict_counts_every_comparison_and_keeps_single_runs_apart_from_seeds():
    rows = [
        *({"better": "constrained", "unit": "examples"} for _ in range(3)),
        {"better": "erm", "unit": "examples"},
        {"better": "erm", "unit": "seeds"},
        {"better": "", "unit": "seeds paired"},
        {"better": "", "unit": ""},
    ]
    assert page.verdict(rows) == (
        "Out of distribution, of 7 comparisons: "
        "over training seeds 1 in favour of the unconstrained one, 1 in favour of neither; "
        "over test examples of single runs, which say nothing about other training seeds, "
        "3 in favour of the constrained model, 1 in favour of the unconstrained one; 1 without an interval."
    )
    assert page.verdict(rows[-2:]) == (
        "Out of distribution, of 2 comparisons: over training seeds 1 in favour of neither; 1 without an interval."
    )
    assert page.verdict([]) == ""


def test_without_a_run_of_each_objective_there_is_no_comparison(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9})
    assert compared(tmp_path) == []
    assert "Constrained against unconstrained" not in rendered(tmp_path)


def test_a_side_that_is_not_evaluated_is_told_with_the_command(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5})
    erm = make_run(trained_run, tmp_path, None, objective="erm")
    (row,) = compared(tmp_path)
    assert row["reason"] == f"not evaluated: cudt eval-ood {erm.path}"
    assert (row["ood_mean_constrained"], row["unit"], row["better"]) == (0.5, "", "")
    html = rendered(tmp_path)
    assert row["reason"] in Parsed(html).text
    assert ">nan<" not in html


def test_runs_of_another_training_level_are_not_compared(trained_run, tmp_path):
    curve = {0.0: 0.9, 1.0: 0.5}
    make_run(trained_run, tmp_path, curve)
    make_run(trained_run, tmp_path, curve, objective="erm", gamma_train=1.0)
    assert compared(tmp_path) == []


def test_without_a_level_in_common_there_is_no_difference_and_this_is_why(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5})
    make_run(trained_run, tmp_path, {0.25: 0.9, 2.0: 0.5}, objective="erm")
    (row,) = compared(tmp_path)
    assert row["reason"] == "no level in common"
    assert math.isnan(row["difference"])
    assert "Why 1 has no interval" in Parsed(rendered(tmp_path)).text


def test_without_levels_above_training_nothing_is_said_about_out_of_distribution(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        make_run(trained_run, tmp_path, {0.0: 0.875}, objective=objective)
    (row,) = compared(tmp_path)
    assert row["reason"] == "no level for the ood mean"
    assert math.isnan(row["difference"])
    assert (row["id_mean_constrained"], row["id_mean_erm"]) == (0.875, 0.875)
    html = rendered(tmp_path)
    assert ">nan<" not in html


def make_searched(trained_run: Run, out: Path) -> None:
    """Three variants of the constrained model, the second the best by validation data, and one ERM."""
    for alpha, loss, value in ((0.1, 0.5, 0.7), (0.2, 0.3, 0.6), (0.3, 0.4, 0.8)):
        make_run(
            trained_run,
            out,
            {0.0: 0.9, 1.0: value},
            overrides=[f"descent.alpha={alpha}"],
            best={"epoch": 1, "validation_loss": loss},
        )
    make_run(trained_run, out, {0.0: 0.9, 1.0: 0.5}, objective="erm")


def test_of_several_variants_the_best_by_validation_data_is_compared(trained_run, tmp_path):
    make_searched(trained_run, tmp_path)
    (row,) = compared(tmp_path)
    assert row["label"] == "constrained α=0.2"
    assert row["ood_mean_constrained"] == 0.6
    assert row["runs"] == "best of 3 against best of 1"
    assert "<td>best of 3 against best of 1</td>" in rendered(tmp_path)


def test_runs_that_take_no_part_in_a_comparison_are_shown_all_the_same(trained_run, tmp_path):
    make_searched(trained_run, tmp_path)
    made = material(tmp_path)
    kept = [run for run in made.compared if run.objective == "erm" or run.setting("descent.alpha") == 0.1]
    (row,) = page.comparisons(replace(made, compared=kept))
    assert (row["label"], row["runs"]) == ("constrained α=0.1", "1 seed")
    text = Parsed(page.render(replace(made, compared=kept))).text
    assert all(f"constrained α={alpha}, seed 0" in text for alpha in (0.1, 0.2, 0.3))


def test_unconstrained_models_of_another_make_are_compared_each_by_itself(pair):
    constrained, erm = collect([pair]).runs
    other = variant_of(erm, "other", {"model": {"width": 32}})
    rows = page.comparisons(material(Collected([constrained, erm, other], [])))
    assert len(rows) == 2
    assert ["ERM of another make" in row["setting"] for row in rows] == [False, True]
    assert [row["runs"] for row in rows] == ["1 seed", "1 seed"]
    # A constrained model of that make is its own pair.
    wide = variant_of(constrained, "wide", {"model": {"width": 32}})
    rows = page.comparisons(material(Collected([constrained, wide, erm, other], [])))
    assert not any("another make" in row["setting"] for row in rows)
    assert [row["runs"] for row in rows] == ["1 seed", "1 seed"]


@pytest.mark.parametrize("sections", [{"task": {"train": 50}}, {"task": {"test": 50}}])
def test_runs_on_other_data_are_not_compared(sections, pair):
    constrained, erm = collect([pair]).runs
    assert page.comparisons(material(Collected([constrained, variant_of(erm, "other", sections)], []))) == []


def test_under_discrete_noise_probabilities_above_0_are_out_of_distribution(trained_run, tmp_path):
    for objective, damaged in (("constrained", 0.75), ("erm", 0.625)):
        make_run(trained_run, tmp_path, {0.0: 0.9, 0.1: damaged}, objective=objective, kind="discrete")
    (row,) = compared(tmp_path)
    assert row["setting"].endswith("discrete")
    assert (row["ood_mean_constrained"], row["ood_mean_erm"], row["id_mean_erm"]) == (0.75, 0.625, 0.9)


def test_an_infeasible_run_is_marked_and_its_layers_are_named(trained_run, tmp_path):
    verdicts = [dict(verdict, verdict="violated") for verdict in trained_run.finished_info().verdicts]
    for objective, curve in CURVES.items():
        make_run(trained_run, tmp_path, curve, objective=objective, feasible=False, verdicts=verdicts)
    (row,) = compared(tmp_path)
    assert row["infeasible"].endswith(": violated at layers 1, 2, 3")
    html = rendered(tmp_path)
    assert '<span class="infeasible">infeasible (violated at layers 1, 2, 3)</span>' in html
    # ERM has no constraints that it could break.
    assert html.count(">infeasible (") == 1


# ---------------------------------------------------------------- commands, an empty page


def test_commands_name_every_kind_of_noise_seed_and_picture(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: [0.9, 0.8], 1.0: [0.7, 0.6]}, kind="discrete")
    save_samples(run, "discrete-a", "discrete-b")
    (read,) = collect([tmp_path]).runs
    options = "--perturbation discrete --probabilities 0,1 --noise-seed 0 --noise-seed 1 --save-samples 2"
    assert page.evaluation_commands(read) == [f"cudt eval-ood {run.path} {options}"]


def test_a_page_without_curves_opens(trained_run, tmp_path):
    make_run(trained_run, tmp_path)
    html = rendered(tmp_path)
    assert "not evaluated yet" in html
    assert ">nan<" not in html


def test_figures_that_the_charts_show_too_are_for_paper(pair, tmp_path):
    figures = []
    for name, recipe in (("gaussian-layer-ratios", "reviews-ut"), ("by-depth", "reviews-ut"), ("grid", "")):
        path = tmp_path / f"{name}.png"
        path.write_text(name)
        figures.append(Figure(recipe, f"Title of {name}", path, path))
    html = page.render(material(pair, figures))
    assert re.findall(r"<figure( class=\"static\")?><figcaption>(.*?)<", html) == [
        (' class="static"', "Title of gaussian-layer-ratios"),
        ("", "Title of by-depth"),
        ("", "Title of grid"),
    ]


def test_a_page_of_nothing_is_a_page():
    empty = pd.DataFrame(columns=["recipe", "objective", "variant", "perturbation"])
    made = Material(Collected([], []), [], [], empty, [], [], [])
    assert "0 finished runs of 0 recipes" in page.render(made)
