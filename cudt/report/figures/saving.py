"""Write a drawing to disk, as PNG for the page and as PDF for papers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from cudt.report.figures.base import Drawing
from cudt.utils.files import write_atomically


@dataclass(frozen=True)
class Figure:
    """A figure on disk. `recipe` is empty for a figure over several recipes."""

    recipe: str
    title: str
    png: Path
    pdf: Path


def save(drawing: Drawing, recipe: str, stem: Path, *, grid: bool = True) -> Figure:
    """Write `stem`.png and `stem`.pdf, and close the Matplotlib figure."""
    figure = drawing.figure
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        if grid:
            axes.grid(alpha=0.25, linewidth=0.6)
    # `with_suffix` would cut off what follows a dot in a recipe's name.
    paths = {extension: stem.parent / f"{stem.name}.{extension}" for extension in ("png", "pdf")}
    with warnings.catch_warnings():
        # The font lacks some scripts that a recipe may be named in; Matplotlib draws boxes instead.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        _lay_out_once(figure)
        for extension, path in paths.items():
            write_atomically(path, partial(figure.savefig, format=extension, dpi=150))
    plt.close(figure)
    return Figure(recipe, drawing.title, paths["png"], paths["pdf"])


def _lay_out_once(figure: Any) -> None:
    """Compute the layout now and keep it: each format would compute it twice, which takes longer
    than drawing.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
