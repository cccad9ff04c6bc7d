"""The page as a browser shows it: Chromium, steered by Playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt import report
from tests.report import make_run, make_scored_run
from tests.report.many import add_history, add_levels, make_many

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

EVIL = "<script>alert(1)</script>"
LEVELS = [0.0, 0.4, 1.0]
#: Milliseconds; machines that test may be busy.
PATIENCE = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Opened:
    """A page with all that a browser complained about, and all that it asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))
        # Counts from now on.
        self._session = self.context.new_cdp_session(self.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(path.as_uri())

    def seconds(self) -> float:
        """What the page's own thread has computed so far, whatever else the machine does."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def section(self, recipe: str) -> Any:
        """The charts of a recipe, drawn."""
        section = self.page.locator("section", has=self.page.get_by_role("heading", name=recipe, exact=True, level=2))
        charts = section.locator(".interactive")
        charts.scroll_into_view_if_needed()
        charts.and_(self.page.locator("[data-drawn=yes]")).wait_for()
        return charts


def traces(charts: Any, chart: str) -> list[dict[str, Any]]:
    """The lines that a chart draws; bands have no name."""
    drawn = charts.locator(f"[data-{chart}]").evaluate(
        "element => element.data.map(({name, x, y, mode}) => ({name, x, y, mode}))"
    )
    return [trace for trace in drawn if trace.get("name")]


def names(charts: Any, chart: str) -> list[str]:
    return [trace["name"] for trace in traces(charts, chart)]


def n_drawn(charts: Any, chart: str) -> int:
    return charts.locator(f"[data-{chart}] .scatterlayer .trace").count()


@pytest.fixture(scope="module")
def written(trained_run, tmp_path_factory) -> Path:
    """A report on two recipes: two variants of a constrained model and ERM on two seeds under two kinds of noise."""
    out = tmp_path_factory.mktemp("browser")
    random = np.random.default_rng(0)
    for objective, alpha in (("constrained", 0.1), ("constrained", 0.3), ("erm", None)):
        for seed in (0, 1):
            scores = {gamma: (random.random(40) < 0.9 - 0.3 * gamma).astype(float) for gamma in LEVELS}
            overrides = [] if alpha is None else [f"descent.alpha={alpha}"]
            run = make_scored_run(
                trained_run,
                out / "runs",
                scores,
                objective=objective,
                seed=seed,
                overrides=overrides,
                steps=(0.6, 0.3, 0.1),
                reference={0.1: 0.7, 0.3: 1.4}.get(alpha or 0, 2.8),
            )
            add_levels(run, LEVELS)
            add_levels(run, [0.4], "uniform")
            add_history(run, rate=0.01 if alpha == 0.1 else 0.05)
            table = run.read_table("ood")
            other = table.assign(perturbation="uniform", value=table["value"] / 2)
            run.write_table("ood", pd.concat([table, other]))
    for objective in ("constrained", "erm"):
        make_run(trained_run, out / "evil", dict.fromkeys(LEVELS, 0.8), objective=objective, name=EVIL)
    return report.write([out / "runs", out / "evil"], out / "report").page


@pytest.fixture
def opened(browser, written) -> Iterator[Opened]:
    made = Opened(browser, written)
    yield made
    assert made.complaints == []
    made.context.close()


def curve(written: Path, kind: str, objective: str) -> list[list[float]]:
    """The curves of an objective as curves.csv has them."""
    table = pd.read_csv(written.parent / "curves.csv", dtype={"variant": str})
    rows = table[
        (table["recipe"] == "reviews-ut") & (table["perturbation"] == kind) & (table["objective"] == objective)
    ]
    return sorted(mine["mean"].tolist() for _, mine in rows.groupby("variant"))


def test_charts_show_the_numbers_of_the_tables_and_nothing_else_is_asked_for(opened, written):
    charts = opened.section("reviews-ut")
    assert names(charts, "curves") == ["constrained α=0.1", "constrained α=0.3", "erm"]
    # Each with its band.
    assert n_drawn(charts, "curves") == 6
    shown = [trace["y"] for trace in traces(charts, "curves")]
    np.testing.assert_allclose(sorted(shown[:2]), curve(written, "gaussian", "constrained"), rtol=1e-4)
    np.testing.assert_allclose(shown[2:], curve(written, "gaussian", "erm"), rtol=1e-4)
    assert n_drawn(charts, "layers") == n_drawn(charts, "ratios") == n_drawn(charts, "training") == 3
    assert [trace["x"] for trace in traces(charts, "ratios")] == [[0.5, 1.5]] * 3
    opened.section(EVIL)
    assert [url for url in opened.requests if not url.startswith("data:")] == [written.as_uri()]


def test_an_evil_name_is_a_text(opened):
    charts = opened.section(EVIL)
    assert names(charts, "curves") == ["constrained", "erm"]
    assert opened.page.locator("nav").get_by_role("link", name=EVIL, exact=True).is_visible()
    assert opened.page.locator("script").count() == 3


def test_a_name_in_the_legend_hides_its_curves_in_every_chart_and_brings_them_back(opened):
    charts = opened.section("reviews-ut")
    buttons = charts.locator("[data-legend] button")
    assert buttons.all_inner_texts() == [
        *(f"{name} · 2 seeds †" for name in ("constrained α=0.1", "constrained α=0.3")),
        "erm · 2 seeds",
    ]
    everything = ["constrained α=0.1", "constrained α=0.3", "erm"]
    by_group = ("curves", "layers", "ratios")
    buttons.nth(1).click()
    assert all(names(charts, chart) == ["constrained α=0.1", "erm"] for chart in by_group)
    assert n_drawn(charts, "curves") == 4
    assert buttons.nth(1).get_attribute("aria-pressed") == "false"
    buttons.nth(1).click()
    assert all(names(charts, chart) == everything for chart in by_group)
    buttons.nth(2).dblclick()
    assert all(names(charts, chart) == ["erm"] for chart in by_group)
    buttons.nth(2).dblclick()
    assert all(names(charts, chart) == everything for chart in by_group)


def references(charts: Any) -> list[float]:
    return charts.locator("[data-layers]").evaluate("element => (element.layout.shapes || []).map((shape) => shape.y0)")


def test_each_reference_of_the_constrained_models_that_are_shown_is_a_line(opened):
    charts = opened.section("reviews-ut")
    assert references(charts) == [0.7, 1.4]
    charts.locator("[data-legend] button").nth(0).click()
    assert references(charts) == [1.4]
    charts.locator("[data-legend] button").nth(1).click()
    assert references(charts) == []


def test_more_than_three_references_are_not_drawn(browser, trained_run, tmp_path):
    for number in range(1, 5):
        overrides = [f"descent.alpha={number / 10}"]
        make_run(trained_run, tmp_path / "runs", {0.0: 0.9}, overrides=overrides, reference=number)
    made = Opened(browser, report.write([tmp_path / "runs"], tmp_path / "report").page)
    charts = made.section("reviews-ut")
    assert references(charts) == []
    charts.locator("[data-legend] button").nth(0).click()
    assert references(charts) == [2, 3, 4]
    assert made.complaints == []
    made.context.close()


def test_a_level_a_run_and_a_kind_of_noise_can_be_chosen(opened, written):
    charts = opened.section("reviews-ut")
    # At first the level of training.
    np.testing.assert_allclose([trace["y"] for trace in traces(charts, "layers")], [[0.64, 0.54, 0.44]] * 3)
    charts.locator("[data-level]").select_option(label="γ = 1")
    np.testing.assert_allclose([trace["y"] for trace in traces(charts, "layers")], [[0.7, 0.6, 0.5]] * 3)
    assert traces(charts, "ratios") == []

    assert [trace["y"][-1] for trace in traces(charts, "training")] == pytest.approx([0.19, 0.38, 0.57])
    charts.locator("[data-run]").select_option(label="constrained α=0.3")
    assert [trace["y"][-1] for trace in traces(charts, "training")] == pytest.approx([0.95, 1.9, 2.85])
    charts.locator("[data-run]").select_option(label="erm")
    # Without multipliers, the losses.
    assert traces(charts, "training")[0]["y"] == pytest.approx([1, 1 / 11], rel=1e-4)

    charts.locator("[data-kind]").select_option("uniform")
    shown = [trace["y"] for trace in traces(charts, "curves")]
    np.testing.assert_allclose(shown[2:], curve(written, "uniform", "erm"), rtol=1e-4)
    assert charts.locator("[data-level] option").all_inner_texts() == ["γ = 0.4"]
    np.testing.assert_allclose([trace["y"] for trace in traces(charts, "layers")], [[0.64, 0.54, 0.44]] * 3)


def test_on_a_phone_nothing_has_to_be_moved_sideways(browser, written):
    made = Opened(browser, written, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for recipe in (EVIL, "reviews-ut"):
        made.section(recipe)
    for details in made.page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert made.page.evaluate("innerWidth") == 390
    assert made.complaints == []
    made.context.close()


def test_on_paper_wide_tables_fit_and_notes_are_not_larger_than_numbers(browser, written):
    # A4 between its margins.
    made = Opened(browser, written, viewport={"width": 703, "height": 1000})
    made.page.emulate_media(media="print")
    for details in made.page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    tables = made.page.locator("table").evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
    assert max(tables) <= 703
    sizes = "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    notes, numbers = (made.page.locator(name).evaluate_all(sizes) for name in (".small", "td"))
    assert max(notes) <= min(numbers)
    made.context.close()


def test_a_table_that_is_cut_off_has_a_shadow(browser, written):
    made = Opened(browser, written, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    table = made.page.locator(".wide").first
    assert table.evaluate("element => element.scrollWidth > element.clientWidth")
    background = "element => getComputedStyle(element).backgroundAttachment"
    assert table.evaluate(background) == "local, scroll"
    made.context.close()


def test_without_scripts_the_figures_are_there(browser, written):
    made = Opened(browser, written, java_script_enabled=False)
    assert not made.page.locator(".interactive").first.is_visible()
    assert all(figure.is_visible() for figure in made.page.locator("figure.static").all())
    assert made.page.locator("figure.static").count() >= 3
    made.context.close()


def test_a_printed_page_has_figures_instead_of_charts(opened):
    opened.section("reviews-ut")
    static, charts = (opened.page.locator(name) for name in ("figure.static", ".interactive"))
    assert (static.first.is_visible(), charts.first.is_visible()) == (False, True)
    opened.page.emulate_media(media="print")
    assert all(figure.is_visible() for figure in static.all())
    assert not any(chart.is_visible() for chart in charts.all())


def test_where_nothing_is_evaluated_yet_training_is_shown(browser, trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        add_history(make_run(trained_run, tmp_path / "runs", objective=objective), updates=10)
    made = Opened(browser, report.write([tmp_path / "runs"], tmp_path / "report").page)
    charts = made.section("reviews-ut")
    assert n_drawn(charts, "training") == 3
    assert not charts.locator("[data-curves]").is_visible()
    charts.locator("[data-run]").select_option(label="erm")
    assert n_drawn(charts, "training") == 3
    # One validation is one point of each layer, which a line without markers would not show.
    assert {trace["mode"] for trace in traces(charts, "training")} == {"lines+markers"}
    assert "not evaluated yet" in made.page.locator("body").inner_text()
    assert made.complaints == []
    made.context.close()


@pytest.mark.slow
def test_five_hundred_runs_are_reported_in_a_minute_and_a_page_that_opens(browser, trained_run, tmp_path):
    assert make_many(trained_run, tmp_path / "runs") == 500
    begun = time.process_time()
    written = report.write([tmp_path / "runs"], tmp_path / "report").page
    assert time.process_time() - begun < 60
    assert written.stat().st_size < 20e6

    made = Opened(browser, written)
    made.section("recipe-00")
    # Less than the lower bound would mean that nothing was measured.
    assert 0.2 < made.seconds() < 3

    made.section("recipe-19")
    made.page.keyboard.press("End")
    made.page.get_by_placeholder("find a recipe").fill("recipe-07")
    sections = made.page.locator("section")
    assert [one.get_attribute("data-name") for one in sections.all() if one.is_visible()] == ["recipe-07"]
    links = made.page.locator("nav a[data-name]")
    assert [one.inner_text() for one in links.all() if one.is_visible()] == ["recipe-07"]
    assert made.complaints == []
    made.context.close()
