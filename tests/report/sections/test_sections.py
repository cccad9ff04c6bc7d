from __future__ import annotations

from cudt import report
from cudt.report import sections
from cudt.report.sections import Content, SectionType
from cudt.report.text_table import Entry, TextTable
from tests.report import make_run

CURVE = {0.0: 0.9, 1.0: 0.6}


def counts(n: int) -> Content:
    table = TextTable("counts", "Counts <n>", [("", 1)], ["runs"], [[Entry(str(n))]], ["A note."])
    return Content([f"There are {n} <runs>."], [table])


class Counting(SectionType):
    """The number of runs, of each recipe and of all."""

    title = "Counting"
    order = 10

    def of_recipe(self, runs, made):
        return counts(len(runs)) if len(runs) > 1 else None

    def over_recipes(self, made):
        return counts(len(made.collected.runs))


def test_a_section_is_text_and_tables_below_a_recipe_and_at_the_end(trained_run, tmp_path, monkeypatch):
    for objective, name in (("constrained", "one"), ("erm", "one"), ("erm", "two")):
        make_run(trained_run, tmp_path / "runs", CURVE, objective=objective, name=name)
    monkeypatch.setattr(sections, "section_types", lambda: [Counting()])
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    page = made.page.read_text(encoding="utf-8")
    assert page.count("<h3>Counting</h3>") == 1
    assert "There are 2 &lt;runs&gt;." in page
    assert '<h2 id="part-0">Counting</h2>' in page
    assert '<a href="#part-0">Counting</a>' in page
    assert page.index("<h3>Counting</h3>") < page.index("All runs: verdicts") < page.index('<h2 id="part-0">')
    files = {path.name for path in (tmp_path / "report" / "tables").glob("*counts*")}
    assert files == {f"{stem}counts.{kind}" for stem in ("one-", "") for kind in ("md", "tex")}


def test_every_file_of_the_folder_but_the_contract_is_a_section():
    assert all(isinstance(found, SectionType) for found in sections.section_types())
    orders = [found.order for found in sections.section_types()]
    assert orders == sorted(orders)
