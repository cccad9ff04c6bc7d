"""Result tables in the paper's layout: a row for each model, L and γ_train, both objectives of each
data set.
"""

from __future__ import annotations

import itertools

import numpy as np

from cudt.report.comparable import CONSTRAINED, SIDES
from cudt.report.objectives import BASELINE
from cudt.report.paper_results import Result, ResultTable, Side
from cudt.report.text_table import Entry, TextTable

_HEADINGS = {CONSTRAINED: "constr.", BASELINE: "unconstr."}
#: Empty cells listed below a table; missing.txt lists all of them.
_FEW = 12


def of_results(table: ResultTable) -> TextTable:
    """Model, L and γ_train against data sets, constrained next to unconstrained."""
    datasets = list(dict.fromkeys(result.cell.dataset for result in table.results))
    has_input = not all(np.isnan(result.input) for result in table.results)
    rows = []
    for (model, layers, gamma), results in itertools.groupby(table.results, key=_row_of):
        found = {result.cell.dataset: result for result in results}
        entries = [entry for name in datasets for entry in _entries(found.get(name), has_input)]
        rows.append([Entry(model), Entry(f"{layers}"), Entry(f"{gamma:g}"), *entries])
    of_dataset = [*(_HEADINGS[side] for side in SIDES), *(["input"] if has_input else [])]
    groups = [("", 3), *((name, len(of_dataset)) for name in datasets)]
    headings = ["model", "L", "γ_train", *(of_dataset * len(datasets))]
    return TextTable(table.stem, table.title, groups, headings, rows, _notes(table))


def _row_of(result: Result) -> tuple[str, int, float]:
    return result.cell.model, result.cell.layers, result.cell.gamma_train


def _entries(result: Result | None, has_input: bool) -> list[Entry]:
    """Both objectives of a cell and, for denoising, the noisy input itself."""
    sides = [_entry(result.sides[side]) if result is not None else Entry() for side in SIDES]
    if not has_input:
        return sides
    return [
        *sides,
        Entry() if result is None or np.isnan(result.input) else Entry(f"{result.input:.3f}"),
    ]


def _entry(side: Side) -> Entry:
    """Our number; in small print the paper's, the difference to it, and the number of runs."""
    printed = "" if np.isnan(side.paper) else f"{side.paper:.3f}"
    if not side.is_filled:
        return Entry(detail=printed)
    difference = f"{side.difference:+.3f}" if side.is_on_its_levels else "at other levels"
    detail = f"{printed}, {difference}; {side.chosen.how}" if printed else side.chosen.how
    text = "not a number" if np.isnan(side.ours) else f"{side.ours:.3f}"
    return Entry(text, detail, side.is_better, "†" if side.chosen.infeasible else "")


# ---------------------------------------------------------------- notes


def _notes(table: ResultTable) -> list[str]:
    notes = [_note_on_numbers(table), _note_on_bold(table), _note_on_uneven_sides(table)]
    if not all(np.isnan(result.input) for result in table.results):
        notes.append("Input: the noisy input itself, unchanged.")
    if table.infeasible:
        notes.append(
            "†: infeasible, a constraint is not kept. " + "; ".join(table.infeasible) + "."
        )
    if table.is_published and table.missing:
        notes.append(_note_on_missing(table))
    return [note for note in notes if note]


def _note_on_numbers(table: ResultTable) -> str:
    found = {side.levels for side in _filled(table) if side.levels}
    levels = sorted(f"{len(mine)} levels from {mine[0]:g} to {mine[-1]:g}" for mine in found)
    brackets = (
        "the paper's number, the difference to it, and the number of seeds"
        if table.is_published
        else "the number of seeds"
    )
    return (
        f"Our numbers ({'; '.join(levels) or 'no run yet'}); in brackets {brackets}. "
        "Both sides of a cell are measured at the same levels. Best of n: selected on validation "
        "data, on both sides."
    )


def _note_on_bold(table: ResultTable) -> str:
    better = [
        result for result in table.results if any(side.is_better for side in result.sides.values())
    ]
    if not better:
        return ""
    units = {result.difference.unit for result in better} & {"examples", "clips"}
    over = f"test {' and '.join(sorted(units))}"
    single = (
        f" Intervals of single runs are over {over} and say nothing about other training seeds."
    )
    return "Bold: better according to the 95 % interval of the paired difference." + (
        single if units else ""
    )


def _note_on_uneven_sides(table: ResultTable) -> str:
    complete = [
        result for result in table.results if all(side.is_filled for side in result.sides.values())
    ]
    if all(result.is_even for result in complete):
        return ""
    return "Where the numbers of runs differ, neither side is bold: the best of more runs wins by luck alone."


def _note_on_missing(table: ResultTable) -> str:
    missing = table.missing
    shown = "; ".join(missing[:_FEW]) + (
        "; the rest is in missing.txt" if len(missing) > _FEW else ""
    )
    return f"No run yet for {len(missing)} of {2 * len(table.results)} numbers: {shown}."


def _filled(table: ResultTable) -> list[Side]:
    return [side for result in table.results for side in result.sides.values() if side.is_filled]
