"""`cudt generate`: answer instructions under noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli import completion
from cudt.cli.options import DataRoot, Device, EvaluatedWeights, require_folder
from cudt.cli.terminal import make_console, progress_on
from cudt.utils.errors import UserError
from cudt.utils.processes import is_main_process

OneOrTwoRuns = Annotated[
    list[Path],
    typer.Argument(
        help="One run folder, or two to compare their completions.",
        show_default=False,
        autocompletion=completion.run_folders,
    ),
]
Instructions = Annotated[
    Path,
    typer.Option(
        help="File with a column `instruction` and optional columns `input` and `dataset`, in AlpacaEval's format."
    ),
]
Gamma = Annotated[float, typer.Option(min=0, help="Noise level γ on every token, including generated ones.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens in a completion.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Number of instructions answered together.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Answer only the first N instructions.", show_default="all")]


def generate(
    run: OneOrTwoRuns,
    instructions: Instructions,
    gamma: Gamma = 0.0,
    noise_seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 8,
    limit: Limit = None,
    weights: EvaluatedWeights = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Answer instructions under noise and write the completions in AlpacaEval's format.

    Existing completions are kept; only missing ones are generated.
    """
    _check(run, instructions)
    from cudt.evaluation import generate as generation
    from cudt.runs.find import open_run

    opened = [open_run(path, weights.value if weights else None) for path in run]
    for one in opened:
        generation.check(one)
    request = generation.Request(instructions, gamma, noise_seed, max_new_tokens, batch_size, limit)
    console = make_console()
    written: list[Path] = []
    for one in opened:
        with one.locked_by_main():
            written.append(generation.generate(one, request, device, data_root, progress_on(console)))
        console.print(f"completions in {written[-1]}", soft_wrap=True)
    if len(written) == 2 and is_main_process():
        console.print(f"both runs in {generation.compare(written[0], written[1], limit)}", soft_wrap=True)


def _check(runs: list[Path], instructions: Path) -> None:
    """Refuse paths that do not exist, and anything but one run or two different ones."""
    if len(runs) > 2:
        raise UserError(f"{len(runs)} run folders: give one, or two to compare")
    if not instructions.is_file():
        raise UserError(f"instructions file '{instructions}' does not exist")
    for path in runs:
        require_folder(path, "run folder")
    if len({path.resolve() for path in runs}) < len(runs):
        raise UserError(f"run folder '{runs[0]}' is given twice: give two different runs to compare")
