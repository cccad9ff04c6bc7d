from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cudt.config.recipe import NamedRecipe
from cudt.report import page, tables
from cudt.report.collect import Collected, collect
from cudt.report.figures import Figure
from cudt.report.groups import read_groups
from cudt.report.material import Material
from cudt.report.paper_results import result_tables
from cudt.report.paper_tables import of_results
from cudt.runs.run import Run, write_recipe
from tests.report import GAMMA_TRAIN, make_run, make_video_run, save_samples
from tests.report.figures import variant_of

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
    """Leave out the megabytes of plotly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "get_plotlyjs", lambda: "/* plotly */")
        yield


def material(found: Path | Collected) -> Material:
    """What a page is made of, without the figures, which take longest."""
    collected = collect([found]) if isinstance(found, Path) else found
    runs = collected.runs
    curves = tables.curves(runs)
    laid_out = [(of_results(table), table.n_filled > 0) for table in result_tables(runs)]
    groups = read_groups(runs, curves)
    return Material(collected, runs, groups, tables.summary(runs), laid_out, [])


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
    # Plotly's own script contains addresses; test_browser.py checks that none is requested.
    assert not re.search(r"https?://|@import|url\(", pair_page)


def test_the_page_shows_the_numbers_of_the_table(pair, pair_page):
    text = Parsed(pair_page).text
    table = tables.summary(collect([pair]).runs)
    for column in ("id_mean", "ood_mean", "auc", "validation_loss"):
        for value in table[column]:
            assert f"{value:.4f}" in text
    assert "γ 0 to 1" in text


def test_the_verdict_table_starts_with_f_0_and_names_the_epoch_that_it_is_about(trained_run, tmp_path):
    best = {"epoch": 7, "validation_loss": 0.4}
    make_run(trained_run, tmp_path, CURVES["constrained"], reference=0.6931, best=best, overrides=["training.epochs=9"])
    make_run(trained_run, tmp_path, CURVES["erm"], objective="erm", best={"epoch": 9},
             overrides=["training.epochs=9", "training.select=last"])  # fmt: skip
    html = rendered(tmp_path)
    tables = html.split("<th>± 1 s.e.</th>")[1:]
    assert all("<tr><td>0</td>" in table.split("<tr><td>1</td>")[0] for table in tables)
    assert "<tr><td>0</td><td>0.6931</td>" in html
    assert "weights of epoch 7 of 9 (the best epoch)" in html
    assert "weights of epoch 9 of 9 (the last epoch)" in html


def test_the_rule_by_which_runs_are_chosen_is_on_the_page_once(pair_page, trained_run, tmp_path):
    assert pair_page.count("on validation data: by the mean metric over γ") == 1
    assert pair_page.count("Which runs are shown") == 1
    make_run(trained_run, tmp_path, CURVES["constrained"])
    assert "Which runs are shown" not in rendered(tmp_path)


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


def test_a_complete_report_has_no_warnings(pair_page):
    assert "Warnings" not in pair_page
    assert "Test examples" not in pair_page
    assert "Completions" not in pair_page


def test_tables_without_a_number_of_ours_are_folded(pair_page):
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


def answer(instruction: str, output: str) -> dict[str, str]:
    return {"instruction": instruction, "output": output, "generator": "run", "dataset": "ask"}


def test_names_and_texts_are_shown_and_never_run(trained_run, tmp_path):
    changes: dict[str, Any] = {"name": EVIL, "command": f"cudt {EVIL}"}
    run = make_run(trained_run, tmp_path, CURVES["constrained"], **changes)
    claims = run.recipe.settings.model_copy(update={"reproduces": f"Claims {EVIL}"})
    write_recipe(Run(run.path, NamedRecipe(EVIL, claims)))
    complete(run, "<img onerror=alert(3)>.json", [answer(f"Why {EVIL}?", f"So {EVIL}")])
    make_run(trained_run, tmp_path, CURVES["erm"], **changes, objective="erm")
    broken = make_run(trained_run, tmp_path, None, objective="supervised", status="failed", reason=EVIL)
    save_samples(run, "<img onerror=alert(1)>")
    html = rendered(tmp_path)
    parsed = Parsed(html)
    assert EVIL not in html
    assert "<img onerror" not in html
    assert "onerror" not in parsed.attributes
    # The page has three scripts of its own: the data, plotly and page.js.
    assert parsed.tags.count("script") == 3
    texts = [f"cudt {EVIL}", f"{broken.path}: failed ({EVIL})", f"Why {EVIL}?", f"So {EVIL}", f"Claims {EVIL}"]
    for text in [*texts, "<img onerror=alert(1)>", "<img onerror=alert(3)>", f"{EVIL} on reviews"]:
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


def test_warnings_are_on_the_page(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVES["constrained"])
    make_run(trained_run, tmp_path, {0.0: 0.9}, seed=5, status="failed", reason="loss not finite")
    html = rendered(tmp_path)
    assert "failed (loss not finite)" in html
    assert "Warnings (1)" in html


def test_damaged_completions_and_histories_are_warnings_and_the_rest_is_shown(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, CURVES["constrained"])
    broken = complete(run, "a.json", '[{"instr')
    complete(run, "b.json", [answer("Why?", "Because.")])
    without = make_run(trained_run, tmp_path, CURVES["erm"], objective="erm")
    (without.path / "history.csv").write_text("step,ep")
    text = Parsed(rendered(tmp_path)).text
    assert f"{broken}: damaged (not valid JSON: " in text
    assert f"{without.path / 'history.csv'}: damaged (the last line is cut off)" in text
    assert "Warnings (2)" in text
    assert "Because." in text


def test_pictures_that_do_not_fit_are_a_warning(trained_run, tmp_path, monkeypatch):
    save_samples(make_run(trained_run, tmp_path, CURVES["constrained"]), "a", "b", "c")
    monkeypatch.setattr("cudt.report.exhibits._MOST_BYTES", 60)
    text = Parsed(rendered(tmp_path)).text
    assert "2 pictures are not shown, since the page would be too large" in text
    assert "Test examples" in text


def test_the_same_examples_and_answers_are_shown_side_by_side(trained_run, tmp_path):
    for objective, curve in CURVES.items():
        run = make_run(trained_run, tmp_path, curve, objective=objective)
        save_samples(run, "gaussian-a")
        complete(run, "clean.json", [answer("Why?", f"{objective} knows")])
    html = rendered(tmp_path)
    text = Parsed(html).text
    assert html.count("data:image/png;base64,") == 2
    assert text.index("constrained knows") < text.index("erm knows")
    assert text.count("Why?") == 1


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


def test_figures_with_the_content_of_the_charts_are_for_print_only(pair, tmp_path):
    figures = []
    for name, recipe in (("gaussian-layer-ratios", "reviews-ut"), ("by-depth", "reviews-ut"), ("grid", "")):
        path = tmp_path / f"{name}.png"
        path.write_text(name)
        figures.append(Figure(recipe, f"Title of {name}", path, path))
    html = page.render(material(pair), lambda: figures)
    assert re.findall(r"<figure( class=\"static\")?><figcaption>(.*?)<", html) == [
        (' class="static"', "Title of gaussian-layer-ratios"),
        ("", "Title of by-depth"),
        ("", "Title of grid"),
    ]


def test_a_page_without_runs_renders():
    empty = pd.DataFrame(columns=["recipe", "objective", "variant", "perturbation"])
    made = Material(Collected([], []), [], [], empty, [], [])
    assert "0 finished runs of 0 recipes" in page.render(made)
