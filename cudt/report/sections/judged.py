"""Completions as an ERM run judges them: likelihood, repetitions and win rates, for runs with judged.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.evaluation.judged import Condition, WinRate, judge_name, means, win_rates
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import by_cell, by_group
from cudt.report.material import Material
from cudt.report.objectives import BASELINE
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_HEADINGS = [
    *("setting", "instructions", "γ", "objective", "seeds"),
    *("log p per token", "repeated", "tokens", "empty", "win rate against erm"),
]
_NOTE = (
    "Means over seeds. log p per token: the mean log-probability of a completion's tokens, by the last layer of the "
    "judge, without noise. repeated: the share of 4-grams of tokens that occurred before in the same completion; "
    "likelihood rewards repetition, so read both together. empty: the share of empty completions, which have no "
    "likelihood and lose against any other. win rate: the share of instructions whose completion is likelier than that "
    "of the ERM run of the same seed, a tie counts half; with its 95 % interval over seeds, or for one seed over "
    "instructions."
)
_OWN = "† One of the runs is the judge itself, which favours its own completions."

#: The rows of judged.csv that one judge wrote, by run.
Judged = Mapping[int, pd.DataFrame]


class JudgedTable(SectionType):
    """One table of all recipes."""

    title = "Judged completions"
    order = 40

    def over_recipes(self, made: Material) -> Content | None:
        """A row for each group and condition; None if no run has judged.csv."""
        cells = by_cell(run for run in made.compared if run.has_table("judged"))
        rows: list[list[Entry]] = []
        notes = [_NOTE]
        for cell, runs in cells.items():
            judge, judged = _by_main_judge(runs)
            notes.append(f"{cell}: judged by {judge}.")
            for group in by_group(runs).values():
                rows += _rows(str(cell), group, runs, (judge, judged), made.labels)
        if not rows:
            return None
        notes += [_OWN] if any(row[-1].mark for row in rows) else []
        title = "Completions, judged by their likelihood under an ERM run"
        return Content(tables=[TextTable("judged", title, [("", len(_HEADINGS))], _HEADINGS, rows, notes)])


def _by_main_judge(runs: Sequence[ReadRun]) -> tuple[str, Judged]:
    """The judge of most runs, the first by name of several, and what it wrote about each run, by the run's id."""
    tables = {id(run): run.run.read_table("judged") for run in runs}
    counts = Counter(judge for rows in tables.values() for judge in sorted(set(rows["judge"])))
    judge = min(counts, key=lambda name: (-counts[name], name))
    return judge, {number: rows[rows["judge"] == judge] for number, rows in tables.items()}


def _rows(
    setting: str,
    group: Sequence[ReadRun],
    runs: Sequence[ReadRun],
    judging: tuple[str, Judged],
    labels: Mapping[GroupKey, str],
) -> Iterator[list[Entry]]:
    """A row for each condition of a group: the means over its runs, and the win rate against the baseline."""
    judge, judged = judging
    by_run = [means(judged[id(run)]) for run in group]
    against = list(_against_baseline(group, runs, judged))
    for condition in sorted({condition for mine in by_run for condition in mine}):
        found = [mine[condition] for mine in by_run if condition in mine]
        pairs = [(pair, rates[condition]) for pair, rates in against if condition in rates]
        has_judge = any(judge_name(run.run) == judge for pair, _ in pairs for run in pair)
        yield [
            Entry(setting),
            Entry(f"{condition.instructions}, {condition.max_new_tokens} tokens"),
            Entry(f"{condition.gamma:g}"),
            Entry(labels[group[0].group]),
            Entry(str(len(found))),
            Entry(f"{np.mean([one.log_likelihood for one in found]):.3f}"),
            Entry(f"{np.mean([one.repeated for one in found]):.1%}"),
            Entry(f"{np.mean([one.tokens for one in found]):.1f}"),
            Entry(f"{np.mean([one.n_empty / one.n for one in found]):.1%}"),
            _win_rate([rate for _, rate in pairs], "†" if has_judge else ""),
        ]


def _against_baseline(
    group: Sequence[ReadRun], runs: Sequence[ReadRun], judged: Judged
) -> Iterator[tuple[tuple[ReadRun, ReadRun], Mapping[Condition, WinRate]]]:
    """Each run of a group with the ERM run of the same seed; of several groups of ERM, the largest."""
    baselines = by_group(run for run in runs if run.objective == BASELINE).values()
    if group[0].objective == BASELINE or not baselines:
        return
    by_seed = {run.seed: run for run in max(baselines, key=len)}
    for run in group:
        if (other := by_seed.get(run.seed)) is not None:
            yield (run, other), win_rates(judged[id(run)], judged[id(other)])


def _win_rate(rates: Sequence[WinRate], mark: str) -> Entry:
    """The mean over seeds with Student's interval; of one seed, its own interval over instructions."""
    if not rates:
        return Entry("–")
    values = np.array([one.rate for one in rates])
    mean, low, high = float(values.mean()), rates[0].low, rates[0].high
    if len(rates) > 1:
        reach = float(intervals.student([(values.var(ddof=1) / len(values), len(values) - 1)]))
        low, high = max(0.0, mean - reach), min(1.0, mean + reach)
    return Entry(f"{mean:.1%}", f"{low:.1%} to {high:.1%}", mark=mark)


SECTION = JudgedTable()
