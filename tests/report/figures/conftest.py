from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from cudt.report.figures import Figure, ablation, curves, depth, descent, layers


@pytest.fixture(autouse=True)
def _nothing_has_to_outlive_a_power_cut(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn from now on; they are not written to disk, which takes most of the time."""
    kept: list[Any] = []

    def keep(figure: Any, recipe: str, title: str, stem: Path) -> Figure:
        kept.append(figure)
        return Figure(recipe, title, stem.with_name(f"{stem.name}.png"), stem)

    for module in (ablation, curves, depth, descent, layers):
        monkeypatch.setattr(module, "save", keep)
    yield kept
    for figure in kept:
        plt.close(figure)
