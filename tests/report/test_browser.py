"""The page as a browser shows it: Chromium, steered by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt import report
from tests.report import make_run, make_scored_run
from tests.report.many import add_history, add_levels

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
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
        self.context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, **options}
        )
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
        section = self.page.locator(
            "section", has=self.page.get_by_role("heading", name=recipe, exact=True, level=2)
        )
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
    """A report on two recipes: two variants of a constrained model and ERM on two seeds under two
    kinds of noise."""
    out = tmp_path_factory.mktemp("browser")
    random = np.random.default_rng(0)
    for objective, alpha in (("constrained", 0.1), ("constrained", 0.3), ("erm", None)):
        for seed in (0, 1):
            scores = {
                gamma: (random.random(40) < 0.9 - 0.3 * gamma).astype(float) for gamma in LEVELS
            }
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
        make_run(
            trained_run, out / "evil", dict.fromkeys(LEVELS, 0.8), objective=objective, name=EVIL
        )
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
        (table["recipe"] == "reviews-ut")
        & (table["perturbation"] == kind)
        & (table["objective"] == objective)
    ]
    return sorted(mine["mean"].tolist() for _, mine in rows.groupby("variant"))


def test_charts_show_the_numbers_of_the_tables_and_nothing_else_is_asked_for(opened, written):
    charts = opened.section("reviews-ut")
    assert names(charts, "curves") == ["constrained α=0.1", "constrained α=0.3", "erm"]
    # Each with its band.
    assert n_drawn(charts, "curves") == 6
    shown = [trace["y"] for trace in traces(charts, "curves")]
    np.testing.assert_allclose(
        sorted(shown[:2]), curve(written, "gaussian", "constrained"), rtol=1e-4
    )
    np.testing.assert_allclose(shown[2:], curve(written, "gaussian", "erm"), rtol=1e-4)
    assert (
        n_drawn(charts, "layers") == n_drawn(charts, "ratios") == n_drawn(charts, "training") == 3
    )
    assert [trace["x"] for trace in traces(charts, "ratios")] == [[0.5, 1.5]] * 3
    opened.section(EVIL)
    assert [url for url in opened.requests if not url.startswith("data:")] == [written.as_uri()]


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


def test_without_scripts_the_figures_are_there(browser, written):
    made = Opened(browser, written, java_script_enabled=False)
    assert not made.page.locator(".interactive").first.is_visible()
    assert all(figure.is_visible() for figure in made.page.locator("figure.static").all())
    assert made.page.locator("figure.static").count() >= 3
    made.context.close()
