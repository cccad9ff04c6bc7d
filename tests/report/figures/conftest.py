from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from cudt.report import figures
from cudt.report.figures import Drawing, Figure


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


@pytest.fixture
def axes():
    return plt.figure().add_subplot()


@pytest.fixture
def drawn(monkeypatch) -> list[Any]:
    """The figures that are drawn from now on, in this process; they are not saved, which takes most
    of the time."""
    kept: list[Any] = []

    def keep(drawing: Drawing, recipe: str, stem: Path) -> Figure:
        kept.append(drawing.figure)
        return Figure(recipe, drawing.title, stem.with_name(f"{stem.name}.png"), stem)

    monkeypatch.setattr(figures, "save", keep)
    return kept
