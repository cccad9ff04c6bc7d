"""The sections of the page that are text and tables, one file each. base.py has the contract."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace

from cudt.report.comparable import families
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import TextTable
from cudt.utils.files import file_name

__all__ = ["Content", "PageSection", "SectionType", "build", "section_types"]


@dataclass(frozen=True)
class PageSection:
    """A section with its content. `recipe` is empty for a section over several recipes."""

    recipe: str
    title: str
    text: list[str]
    tables: list[TextTable]


def section_types() -> list[SectionType]:
    """All sections, in the order of the page."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return sorted((module.SECTION for module in modules if hasattr(module, "SECTION")), key=lambda one: one.order)


def build(made: Material) -> list[PageSection]:
    """Every section that the runs have data for."""
    types = section_types()
    recipes = families(made.compared)
    found = [(recipe, section, section.of_recipe(runs, made)) for recipe, runs in recipes.items() for section in types]
    found += [("", section, section.over_recipes(made)) for section in types]
    return [_section(recipe, section.title, content) for recipe, section, content in found if content is not None]


def _section(recipe: str, title: str, content: Content) -> PageSection:
    """The section; the tables of a recipe have its name in their file names."""
    start = f"{file_name(recipe)}-" if recipe else ""
    tables = [replace(table, stem=f"{start}{table.stem}") for table in content.tables]
    return PageSection(recipe, title, content.text, tables)
