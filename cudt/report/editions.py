"""Tell apart the runs of a recipe that were evaluated on different test data, or whose frozen
weights differ.

Their recipes are equal: files were replaced, or read from another data root. Such runs are never
compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cudt.report.collect import ReadRun


def mark(runs: Sequence[ReadRun]) -> tuple[list[ReadRun], list[str]]:
    """The runs, numbered by edition where a recipe has several; and a warning for each such recipe.

    Edition 1 is that of most runs. Runs that were not evaluated belong to it.
    """
    found: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for run in runs:
        if run.info.test_data is not None:
            found.setdefault(_family(run), Counter())[_edition(run)] += 1
    numbers = {
        family: {
            edition: str(number) for number, (edition, _) in enumerate(counts.most_common(), 1)
        }
        for family, counts in found.items()
        if len(counts) > 1
    }
    marked = [
        replace(run, edition=numbers[_family(run)].get(_edition(run), "1"))
        if _family(run) in numbers
        else run
        for run in runs
    ]
    return marked, [
        f"{recipe}: the runs have {len(editions)} different sets of test data or frozen weights; "
        "they are shown apart and not compared"
        for (recipe, _), editions in numbers.items()
    ]


def _family(run: ReadRun) -> tuple[str, str]:
    return run.recipe, run.pretrained


def _edition(run: ReadRun) -> tuple[str, str]:
    return run.info.test_data or "", run.info.frozen_weights or ""
