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
    """The number of runs of each recipe."""

    title = "Counting"

    def of_recipe(self, runs, made):
        return counts(len(runs)) if len(runs) > 1 else None


def test_a_section_is_text_and_tables_below_a_recipe(trained_run, tmp_path, monkeypatch):
    for objective, name in (("constrained", "one"), ("erm", "one"), ("erm", "two")):
        make_run(trained_run, tmp_path / "runs", CURVE, objective=objective, name=name)
    monkeypatch.setattr(sections, "section_types", lambda: [Counting()])
    made = report.write([tmp_path / "runs"], tmp_path / "report")
    page = made.page.read_text(encoding="utf-8")
    assert page.count("<h3>Counting</h3>") == 1
    assert "There are 2 &lt;runs&gt;." in page
    assert page.index("<h3>Counting</h3>") < page.index("All runs: verdicts")
    files = {path.name for path in (tmp_path / "report" / "tables").glob("*counts*")}
    assert files == {"one-counts.md", "one-counts.tex"}
