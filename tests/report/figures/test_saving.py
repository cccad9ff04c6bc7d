from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from cudt.report import objectives
from cudt.report.figures import Drawing, panels, saving, words


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["$x_{", "$$", r"a\$b", "<script>", "模型", "_hidden", "$x$ and $y$", "two\nlines", "x" * 500]
)
def test_a_figure_with_any_name_is_saved(name, tmp_path):
    figure, grid = panels.panels(1, 1)
    grid[0, 0].set_title(words.plain(name))
    panels.line(grid[0, 0], [0, 1], [0, 1], [0, 1], [0, 1], f"erm {words.legend_text(name)}", objectives.style("erm"))
    panels.legend_below(figure)
    made = saving.save(Drawing(figure, name), name, tmp_path / "a.b")
    assert made.png.name == "a.b.png"
    assert made.pdf.read_bytes().startswith(b"%PDF-")
    assert made.png.stat().st_size > 5_000
    assert plt.get_fignums() == []
