from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from cudt import report
from cudt.report import page, paired, tables
from cudt.report.collect import collect
from cudt.runs import Run
from tests.report import GAMMA_TRAIN, make_run, make_video_run, save_samples

EVIL = "<script>alert(1)</script>"


class Parsed(HTMLParser):
    """Tags, what they point at, and the visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def pair(trained_run, tmp_path):
    """A folder with a constrained and an ERM run."""
    curves = {"constrained": {0.0: 0.9, GAMMA_TRAIN: 0.8, 1.0: 0.7}, "erm": {0.0: 0.95, GAMMA_TRAIN: 0.75, 1.0: 0.5}}
    for objective, curve in curves.items():
        make_run(trained_run, tmp_path / "runs", curve, objective=objective)
    return tmp_path / "runs"


def written(folder, out) -> str:
    return report.write([folder], out).page.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(pair, tmp_path):
    html = written(pair, tmp_path / "report")
    assert not re.search(r"https?://|@import|url\(", html)
    parsed = Parsed(html)
    assert len(parsed.links) == 3
    assert all(link.startswith("data:image/png;base64,iVBORw0KGgo") for link in parsed.links)
    assert not {"script", "link", "iframe"} & set(parsed.tags)


def test_the_page_shows_the_numbers_of_the_table(pair, tmp_path):
    text = Parsed(written(pair, tmp_path / "report")).text
    table = pd.read_csv(tmp_path / "report" / "table.csv")
    for column in ("id_mean", "ood_mean", "auc", "validation_loss"):
        for value in table[column]:
            assert f"{value:.4f}" in text
    assert "γ 0 to 1" in text


def test_the_page_shows_every_run_with_its_verdicts_and_settings(pair, tmp_path):
    text = Parsed(written(pair, tmp_path / "report")).text
    assert "2 finished runs" in text
    for run in collect([pair]).runs:
        levels = ",".join(f"{gamma:g}" for gamma in sorted(run.ood["gamma"].unique()))
        command = f"cudt eval-ood {run.run.path} --perturbation gaussian --gammas {levels} --noise-seed 0"
        assert command in text
        assert run.run.recipe.text() in text
        for verdict in run.info["verdicts"]:
            assert f"{verdict['violation']:.4f}" in text


def test_names_and_texts_are_shown_and_never_run(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "runs", {0.0: 0.9}, name=EVIL, command=f"cudt {EVIL}")
    broken = make_run(trained_run, tmp_path / "runs", {0.0: 0.9}, objective="erm", status="failed", reason=EVIL)
    html = written(tmp_path / "runs", tmp_path / "report")
    parsed = Parsed(html)
    assert EVIL not in html
    assert "script" not in parsed.tags
    assert f"cudt {EVIL}" in parsed.text
    assert f"{broken.path}: failed ({EVIL})" in parsed.text


def test_what_is_left_out_stands_on_the_page(pair, trained_run, tmp_path):
    make_run(trained_run, pair, {0.0: 0.9}, seed=5, status="failed", reason="loss not finite")
    html = written(pair, tmp_path / "report")
    assert "failed (loss not finite)" in html
    assert "Left out" in html


def test_nothing_is_left_out_of_a_whole_report(pair, tmp_path):
    assert "Left out" not in written(pair, tmp_path / "report")


def findings(folder) -> list[str]:
    runs = collect([folder]).runs
    return page.findings(tables.summary(runs), paired.pairs(runs))


def test_the_finding_compares_constrained_with_erm(pair, tmp_path):
    (sentence,) = findings(pair)
    assert sentence == (
        "Under gaussian noise the constrained model's mean accuracy is 0.850 against ERM's 0.850 in distribution "
        "(γ ≤ 0.4), and 0.700 against 0.500 out of distribution (1 and 1 seeds)."
    )
    assert sentence in Parsed(written(pair, tmp_path / "report")).text


def test_a_finding_under_discrete_noise_speaks_of_probabilities(trained_run, tmp_path):
    for objective, damaged in (("constrained", 0.75), ("erm", 0.625)):
        make_run(trained_run, tmp_path, {0.0: 0.9, 0.1: damaged}, objective=objective, kind="discrete")
    assert findings(tmp_path) == [
        "Under discrete noise the constrained model's mean accuracy is 0.900 against ERM's 0.900 in distribution "
        "(p ≤ 0), and 0.750 against 0.625 out of distribution (1 and 1 seeds)."
    ]


def test_there_is_no_finding_without_a_pair(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9})
    make_run(trained_run, tmp_path, None, objective="erm")
    assert findings(tmp_path) == []


def test_two_runs_without_curves_have_no_finding(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        make_run(trained_run, tmp_path, None, objective=objective)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_finding_has_no_numbers_that_are_not_there(gamma, trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        make_run(trained_run, tmp_path, {gamma: 0.875}, objective=objective)
    assert "nan" not in " ".join(findings(tmp_path))
    assert "0.875 against ERM's 0.875" in " ".join(findings(tmp_path))


def test_a_finding_counts_the_seeds_behind_its_means(trained_run, tmp_path):
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.8}, seed=0)
    make_run(trained_run, tmp_path, None, seed=1)
    make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.8}, objective="erm")
    (sentence,) = findings(tmp_path)
    assert "(1 and 1 seeds)" in sentence


@pytest.mark.parametrize("erm", [{"gamma_train": 1.0}, {"accuracy": {0.0: 0.9, 2.0: 0.5}}])
def test_runs_of_another_training_level_or_grid_are_not_compared(erm, trained_run, tmp_path):
    curve = {0.0: 0.9, 1.0: 0.5}
    make_run(trained_run, tmp_path, curve)
    make_run(trained_run, tmp_path, **{"accuracy": curve, **erm}, objective="erm")
    assert findings(tmp_path) == []


# ---------------------------------------------------------------- pictures of test examples


def without_figures(folder) -> str:
    """The page without what takes longest to draw."""
    collected = collect([folder])
    return page.render(collected, tables.summary(collected.runs), [])


def pictures(html: str) -> list[str]:
    """What the pictures of a page without figures hold, in their order."""
    links = Parsed(html).links
    assert all(link.startswith(("data:image/png;base64,", "data:image/gif;base64,")) for link in links)
    return [base64.b64decode(link.split(",")[1]).decode() for link in links]


@pytest.fixture
def videos(trained_run, tmp_path) -> list[Run]:
    """A constrained and an ERM run on videos."""
    curve = {0.0: 10.0, 1.0: 20.0}
    return [make_video_run(trained_run, tmp_path / "runs", curve, objective=word) for word in ("constrained", "erm")]


def test_the_same_example_of_several_runs_stands_together_with_its_moving_pictures(videos, tmp_path):
    for run in videos:
        save_samples(run, "gaussian-b", "gaussian-a")
    html = without_figures(tmp_path / "runs")
    constrained, erm = (run.path.name for run in videos)
    assert pictures(html) == [
        f"{name} gaussian-{example}.{kind}"
        for example in "ab"
        for name in (constrained, erm)
        for kind in ("png", "gif")
    ]
    text = Parsed(html).text
    assert "Looked at" in text
    assert f"constrained, seed 0, {constrained}" in text
    assert f"erm, seed 0, {erm}" in text


def test_a_page_shows_three_examples_at_most(videos, tmp_path):
    save_samples(videos[0], *"edcba")
    name = videos[0].path.name
    shown = pictures(without_figures(tmp_path / "runs"))
    assert shown == [f"{name} {stem}.{kind}" for stem in "abc" for kind in ("png", "gif")]


def test_an_example_that_only_some_runs_show_or_that_does_not_move_is_shown_all_the_same(videos, tmp_path):
    save_samples(videos[0], "a")
    save_samples(videos[1], "b", moving=False)
    first, second = (run.path.name for run in videos)
    shown = pictures(without_figures(tmp_path / "runs"))
    assert shown == [f"{first} a.png", f"{first} a.gif", f"{second} b.png"]


def test_without_pictures_there_is_no_section_for_them(videos, tmp_path):
    assert "Looked at" not in without_figures(tmp_path / "runs")


def test_names_of_examples_are_shown_and_never_run(videos, tmp_path):
    save_samples(videos[0], "<img onerror=alert(1)>")
    html = without_figures(tmp_path / "runs")
    assert "<img onerror" not in html
    assert "<img onerror=alert(1)>" in Parsed(html).text


def test_the_page_shows_the_mean_of_errors(videos, tmp_path):
    html = without_figures(tmp_path / "runs")
    assert "<th>mean</th>" in html
    assert "<td>15.0000</td>" in html
    assert "Metric: RMSE." in Parsed(html).text
