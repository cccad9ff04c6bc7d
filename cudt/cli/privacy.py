"""`cudt privacy`: what noise on token embeddings promises a user, next to what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli.options import DataRoot, Device, RunFolders, require_folder
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from cudt.runs.run import Run

Delta = Annotated[
    float, typer.Option(help="Probability δ with which the promise may fail; well below 1 / number of users.")
]


def privacy(run: RunFolders, delta: Delta = 1e-5, device: Device = "auto", data_root: DataRoot = None) -> None:
    """Show the privacy ε of each level of Gaussian noise on token embeddings, next to the metric.

    For runs on texts that `cudt eval-ood` has evaluated under Gaussian noise. Results are written to privacy.csv in
    each run folder; `cudt report` draws the metric against ε.
    """
    if not 0 < delta < 1:
        raise UserError(f"--delta {delta:g}: expected a probability between 0 and 1, for example 1e-5")
    for path in run:
        require_folder(path, "run folder")
    from cudt.evaluation import privacy as privacies
    from cudt.runs.find import open_run

    runs = [open_run(path) for path in run]
    for one in runs:
        privacies.check(one)
    console = make_console()
    for one in runs:
        with one.locked():
            found = privacies.write_privacy(one, delta, device, data_root)
        console.print(_table(one, delta))
        median, upper, largest = found.norms
        console.print(
            f"{found.n_rows} embeddings: norm {median:.3g} (median), {upper:.3g} (95 %), {largest:.3g} (largest); two "
            f"are at most {found.largest_distance:.3g} apart. The longest test text has {found.longest_text} tokens.\n"
            f"{privacies.conclusion(one, found, delta)}\nwritten to {one.results / 'privacy.csv'}",
            soft_wrap=True,
            highlight=False,
        )


def _table(run: Run, delta: float) -> Table:
    """The metric and the ε of each unit at each level."""
    from rich.table import Table

    from cudt.evaluation.privacy import epsilon_text

    rows = run.read_table("privacy")
    rows = rows[rows["delta"] == delta]
    wide = rows.pivot(index=["gamma", "sigma", "value"], columns="unit", values="epsilon")
    wide = wide[rows["unit"].drop_duplicates()]
    table = Table(box=None, padding=(0, 2, 0, 0), title=f"{run.shown_as}, δ = {delta:g}", title_justify="left")
    for heading in ("γ", "σ", run.finished_info().metric.name, *(f"ε of a {unit}" for unit in wide.columns)):
        table.add_column(heading, justify="right")
    for (gamma, sigma, value), epsilons in zip(wide.index, wide.to_numpy(), strict=True):
        table.add_row(f"{gamma:g}", f"{sigma:.4g}", f"{value:.4f}", *map(epsilon_text, epsilons))
    return table
