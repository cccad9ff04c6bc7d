"""The sections of the page that are text and tables, one file each. base.py has the contract."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudt.report.comparable import families
from cudt.report.material import Material
from cudt.report.sections import descent_under_noise, early_exit, effective_weights
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import TextTable
from cudt.utils.files import file_name

__all__ = ["Content", "PageSection", "SectionType", "build", "section_types"]


@dataclass(frozen=True)
class PageSection:
    """A section of a recipe with its content."""

    recipe: str
    title: str
    text: list[str]
    tables: list[TextTable]


def section_types() -> list[SectionType]:
    """All sections, in the order of the page."""
    return [descent_under_noise.SECTION, effective_weights.SECTION, early_exit.SECTION]


def build(made: Material) -> list[PageSection]:
    """Every section that the runs have data for."""
    types = section_types()
    recipes = families(made.compared)
    found = [
        (recipe, section, section.of_recipe(runs, made))
        for recipe, runs in recipes.items()
        for section in types
    ]
    return [
        _section(recipe, section.title, content)
        for recipe, section, content in found
        if content is not None
    ]


def _section(recipe: str, title: str, content: Content) -> PageSection:
    """The section; the tables of a recipe have its name in their file names."""
    tables = [replace(table, stem=f"{file_name(recipe)}-{table.stem}") for table in content.tables]
    return PageSection(recipe, title, content.text, tables)
