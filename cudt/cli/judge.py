"""`cudt judge`: how likely a run of plain training finds the completions of other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli.options import DataRoot, Device, RunFolders, require_folder
from cudt.cli.terminal import make_console, progress_on
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from cudt.evaluation.judged import Condition
    from cudt.runs.run import Run

By = Annotated[
    Path,
    typer.Option("--by", metavar="RUN", help="Run folder of the judge, a run with objective erm.", show_default=False),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Number of completions judged together.")]


def judge(
    run: RunFolders, by: By, batch_size: BatchSize = 8, device: Device = "auto", data_root: DataRoot = None
) -> None:
    """Judge completions by their likelihood under an ERM run, without an API key.

    Reads the completions that `cudt generate` wrote for each run, and writes log p(completion | instruction) per token
    and the share of repeated 4-grams to judged.csv in its folder; completions that have a row are skipped. Prints the
    means, and how often a completion is likelier than that of the ERM run with the same recipe and seed.
    """
    for path in (*run, by):
        require_folder(path, "run folder")
    if len({path.resolve() for path in run}) < len(run):
        raise UserError("a run folder is given twice; give each once")
    from cudt.evaluation import judge as judging
    from cudt.runs.find import open_run

    runs, chosen = [open_run(path) for path in run], open_run(by)
    judging.check_judge(chosen)
    for one in runs:
        judging.check(one)
    console = make_console()
    rows: dict[Path, pd.DataFrame] = {}
    by_run = judging.Judge(chosen, device, data_root, batch_size)
    for one in runs:
        with one.locked():
            rows[one.results] = by_run.judge(one, progress_on(console))
    console.print(_means(runs, rows, by_run.name))
    if (pairs := _win_rates(runs, rows, by_run.name)) is not None:
        console.print(pairs)
    console.print(f"judged by {by_run.name}; written to judged.csv in each run folder", soft_wrap=True, highlight=False)


def _means(runs: Sequence[Run], rows: Mapping[Path, pd.DataFrame], judge: str) -> Table:
    """The means of each run at each γ."""
    from cudt.evaluation.judged import means

    table = _table("Completions", "run", "γ", "log p per token", "repeated", "tokens", "empty", "n")
    n_sets = _n_sets(rows)
    for one in runs:
        for condition, found in means(rows[one.results]).items():
            numbers = (f"{found.log_likelihood:.3f}", f"{found.repeated:.1%}", f"{found.tokens:.1f}")
            name = _shown(one, judge) + _set(condition, n_sets)
            table.add_row(name, f"{condition.gamma:g}", *numbers, str(found.n_empty), str(found.n))
    return table


def _win_rates(runs: Sequence[Run], rows: Mapping[Path, pd.DataFrame], judge: str) -> Table | None:
    """Each run against the ERM runs of its recipe and seed, at each γ; None without such a pair."""
    from cudt.evaluation.judged import win_rates

    table = _table("Win rate against erm", "run", "against", "γ", "win rate", "95 % interval", "n")
    n_sets = _n_sets(rows)
    for one in runs:
        for other in runs:
            if _is_compared(one, other):
                for condition, found in win_rates(rows[one.results], rows[other.results]).items():
                    names = (_shown(one, judge), _shown(other, judge) + _set(condition, n_sets))
                    reach = f"{found.low:.1%} to {found.high:.1%}"
                    table.add_row(*names, f"{condition.gamma:g}", f"{found.rate:.1%}", reach, str(found.n))
    return table if table.row_count else None


def _is_compared(one: Run, other: Run) -> bool:
    ours, baseline = one.finished_info(), other.finished_info()
    is_baseline = baseline.objective == "erm" != ours.objective
    return is_baseline and (ours.recipe, ours.seed) == (baseline.recipe, baseline.seed)


def _shown(run: Run, judge: str) -> str:
    """A run in a table; the judge itself has a note, because it favours its own completions."""
    from cudt.evaluation.judged import judge_name

    return f"{run.shown_as} (judge)" if judge_name(run) == judge else run.shown_as


def _n_sets(rows: Mapping[Path, pd.DataFrame]) -> int:
    return len(
        {one for mine in rows.values() for one in zip(mine["instructions"], mine["max_new_tokens"], strict=True)}
    )


def _set(condition: Condition, n_sets: int) -> str:
    """Which instructions, where runs have answered several."""
    return f", {condition.instructions}, {condition.max_new_tokens} tokens" if n_sets > 1 else ""


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("run", "against") else "right", overflow="fold")
    return table
