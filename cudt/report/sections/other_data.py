"""Results on data that runs were never trained on: one table over all recipes."""

from __future__ import annotations

from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType


class OtherDataTable(SectionType):
    """Where runs were evaluated on other data, the means over γ and their differences."""

    title = "Other test data"
    order = 40

    def over_recipes(self, made: Material) -> Content | None:
        """One table, if there are such runs."""
        if made.other is None or made.other.numbers.empty:
            return None
        return Content(tables=[made.other.text])


SECTION = OtherDataTable()
