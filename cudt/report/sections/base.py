"""The contract of a section of the page. A new section is one file next to this one, which holds
`SECTION`.

The file says in text and tables what the runs show. The page, and the tables as Markdown and LaTeX
in tables/, are written elsewhere. Pictures are figures (../figures/), which the page shows without
a section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cudt.report.collect import ReadRun
from cudt.report.material import Material
from cudt.report.text_table import TextTable


@dataclass(frozen=True)
class Content:
    """What a section shows: paragraphs, then tables. The stem of a table is its file name in
    tables/.
    """

    text: list[str] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)


class SectionType:
    """A part of the page, below each recipe's numbers."""

    title: ClassVar[str]

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """What it shows for one recipe, given the runs that are compared (no ablations); None for
        nothing.
        """
        raise NotImplementedError
