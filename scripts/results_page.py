"""Write the tables and figures of docs/results.md from a report, so that none of its numbers is typed.

    python scripts/results_page.py outputs/reproduce-cpu/report

copies what the page needs of the report's tables to results/tables/ (results_tables.py) and its figures to
docs/images/results/, and writes every table of the page anew (results_blocks.py): what stands between
`<!-- compare: recipe=… gamma_train=… -->` and `<!-- end -->`. Without an argument, it writes them from results/tables/
as they are. The words `key=value` choose the rows; `search=NAME,NAME` chooses the runs of sweeps, and `beside=NAME`
the sweep with the baselines of one that has none.

compare   a row for each group of runs: means over seeds, and paired differences with 95 % intervals
levels    the metric at each noise level
apart     paired differences to ERM and supervised at each noise level
versus    two groups with different settings, `ours=ARM@GAMMA_TRAIN theirs=ARM@GAMMA_TRAIN`, and their paired difference
weights   runs of several epochs with their best and with their last weights
summary   a row for each constrained group: its recipe, and its paired differences
claims    the paper's claims, with what the runs say
search    the trials of a search: scores on validation data
other     the mean metric on test data of other tasks
bias      how much of the accuracy under noise is a bias towards one class
layers    descent under noise: layers that lower the loss, the best one, what reading the last costs; negative weights
exits     early exit by one rule: accuracy (change against the full model, in points) and layers
privacy   the metric next to ε of one token, at each level of Gaussian noise
report    a table of the report as it is: `table=` is the name of its file in tables/
paper     the mean gains in the paper's table of accuracy AUC

README.md has such tables too.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from results_blocks import KINDS
from results_groups import Side, side
from results_tables import TABLES, copy_tables, write_versus, write_weights

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
PAGES = (PAGE, ROOT / "README.md")
_IMAGES = "images/results"
_BLOCK = re.compile(r"^(<!-- (\w+):? ?(.*?) -->)\n(?:(?!<!-- ).*\n)*(<!-- end -->)$", re.MULTILINE)


def copy_figures(report: Path, page: str) -> None:
    """Copy the figures that the page shows; those that the report does not have stay, with a line about it."""
    for name in re.findall(rf"\({_IMAGES}/([^)]+\.png)\)", page):
        source, target = report / "figures" / name, PAGE.parent / _IMAGES / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        else:
            print(f"{PAGE.name} shows {name}, which {report} does not have")


def rendered(page: str, tables: Path = TABLES) -> str:
    """The page with every table written anew."""

    def block(found: re.Match[str]) -> str:
        begin, kind, words, end = found.groups()
        return f"{begin}\n\n{KINDS[kind](tables, _wanted(words))}\n\n{end}"

    return _BLOCK.sub(block, page)


def _wanted(words: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words.split())


def blocks(page: str, kind: str) -> Iterator[dict[str, str]]:
    """What each block of a kind asks for."""
    for found in _BLOCK.finditer(page):
        if found[2] == kind:
            yield _wanted(found[3])


def compared(page: str, tables: Path = TABLES) -> Iterator[tuple[Side, Side]]:
    """Both sides of each `versus` block whose runs are there."""
    for wanted in blocks(page, "versus"):
        ours, theirs = (side(tables, wanted, wanted[name]) for name in ("ours", "theirs"))
        if ours is not None and theirs is not None:
            yield ours, theirs


if __name__ == "__main__":
    if len(sys.argv) == 2:
        report, texts = Path(sys.argv[1]), "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
        copy_tables(report, [wanted["table"] for wanted in blocks(texts, "report")])
        write_versus(report.parent, compared(texts))
        write_weights(report.parent)
        copy_figures(report, PAGE.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
