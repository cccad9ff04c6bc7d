from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
from tests.report import GAMMA_TRAIN, make_run, save_samples

EVIL = "<script>alert(1)</script>"
CURVES = {
    "constrained": {0.0: 0.9, GAMMA_TRAIN: 0.8, 1.0: 0.7},
    "erm": {0.0: 0.95, GAMMA_TRAIN: 0.75, 1.0: 0.5},
}


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
        self.links += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "action", "data")
        ]
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


def test_the_page_shows_every_run_with_its_verdicts_settings_and_commands(pair, pair_page):
    text = Parsed(pair_page).text
    assert "2 finished runs of 1 recipe ·" in text
    for run in collect([pair]).runs:
        command = (
            f"cudt eval-ood {run.run.path} --perturbation gaussian --gammas 0,0.4,1 --noise-seed 0"
        )
        assert f"{run.info.command}\n{command}" in text
        assert run.run.recipe.text() in text
        for verdict in run.info.verdicts:
            assert f"{verdict.violation:.4f}" in text


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
    broken = make_run(
        trained_run, tmp_path, None, objective="supervised", status="failed", reason=EVIL
    )
    save_samples(run, "<img onerror=alert(1)>")
    html = rendered(tmp_path)
    parsed = Parsed(html)
    assert EVIL not in html
    assert "<img onerror" not in html
    assert "onerror" not in parsed.attributes
    # The page has three scripts of its own: the data, plotly and page.js.
    assert parsed.tags.count("script") == 3
    texts = [
        f"cudt {EVIL}",
        f"{broken.path}: failed ({EVIL})",
        f"Why {EVIL}?",
        f"So {EVIL}",
        f"Claims {EVIL}",
    ]
    for text in [*texts, "<img onerror=alert(1)>", "<img onerror=alert(3)>", f"{EVIL} on reviews"]:
        assert text in parsed.text, text


def test_warnings_are_on_the_page(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVES["constrained"])
    make_run(trained_run, tmp_path, {0.0: 0.9}, seed=5, status="failed", reason="loss not finite")
    html = rendered(tmp_path)
    assert "failed (loss not finite)" in html
    assert "Warnings (1)" in html


# ---------------------------------------------------------------- commands, an empty page


def test_commands_name_every_kind_of_noise_seed_and_picture(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path, {0.0: [0.9, 0.8], 1.0: [0.7, 0.6]}, kind="discrete")
    save_samples(run, "discrete-a", "discrete-b")
    (read,) = collect([tmp_path]).runs
    options = (
        "--perturbation discrete --probabilities 0,1 --noise-seed 0 --noise-seed 1 --save-samples 2"
    )
    assert page.evaluation_commands(read) == [f"cudt eval-ood {run.path} {options}"]


def test_figures_with_the_content_of_the_charts_are_for_print_only(pair, tmp_path):
    figures = []
    for name, recipe in (
        ("gaussian-layer-ratios", "reviews-ut"),
        ("by-depth", "reviews-ut"),
        ("grid", ""),
    ):
        path = tmp_path / f"{name}.png"
        path.write_text(name)
        figures.append(Figure(recipe, f"Title of {name}", path, path))
    html = page.render(material(pair), figures)
    assert re.findall(r"<figure( class=\"static\")?><figcaption>(.*?)<", html) == [
        (' class="static"', "Title of gaussian-layer-ratios"),
        ("", "Title of by-depth"),
        ("", "Title of grid"),
    ]
