"""`cudt generate`: answer instructions under noise, those of a file or single prompts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli.options import DataRoot, Device, EvaluatedWeights, require_folder
from cudt.cli.terminal import make_console, progress_on
from cudt.utils import processes
from cudt.utils.errors import UserError
from cudt.utils.processes import is_main_process
from cudt.utils.text import brief

if TYPE_CHECKING:
    from cudt.evaluation.generate import Decoding
    from cudt.runs.run import Run

OneOrTwoRuns = Annotated[
    list[Path],
    typer.Argument(help="One run folder, or two to compare their completions.", show_default=False),
]
Instructions = Annotated[
    Path | None,
    typer.Option(
        help="File with a column `instruction` and optional columns `input` and `dataset`, in AlpacaEval's format.",
        show_default=False,
    ),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Instruction to answer on standard output; `-` reads it from standard input. Repeatable.",
        show_default=False,
    ),
]
Gamma = Annotated[
    float, typer.Option(min=0, help="Noise level γ on every token, including generated ones.")
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens in a completion.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Number of instructions answered together.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Answer only the first N instructions.", show_default="all"),
]


def generate(
    run: OneOrTwoRuns,
    instructions: Instructions = None,
    prompt: Prompts = None,
    gamma: Gamma = 0.0,
    noise_seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 8,
    limit: Limit = None,
    weights: EvaluatedWeights = None,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Answer instructions under noise: those of a file, or prompts.

    The completions of a file are written to the run folder in AlpacaEval's format; existing ones
    are kept, and only missing ones are generated. Those of prompts are printed, and nothing is
    written.
    """
    prompts = _checked(run, instructions, prompt, limit)
    from cudt.evaluation import generate as generation
    from cudt.runs.run import open_run

    opened = [open_run(path, weights.value if weights else None) for path in run]
    for one in opened:
        generation.check(one)
    how = generation.Decoding(gamma, noise_seed, max_new_tokens, batch_size)
    if instructions is None:
        _print_answers(opened, prompts, how, device, data_root)
        return
    request, console = generation.Request(instructions, how, limit), make_console()
    for one in opened:
        with one.locked():
            path = generation.generate(one, request, device, data_root, progress_on(console))
        console.print(f"completions in {path}", soft_wrap=True)
    if len(opened) == 2 and is_main_process():
        with opened[0].locked():
            console.print(
                f"both runs in {generation.compare(opened[0], opened[1], request)}", soft_wrap=True
            )


def _print_answers(
    runs: Sequence[Run],
    prompts: Sequence[str],
    decoding: Decoding,
    device: str,
    data_root: Path | None,
) -> None:
    """Print the completions; of several, each below its prompt and, if there are two runs, its
    run.
    """
    from cudt.evaluation.generate import answer

    console = make_console()
    for run in runs:
        for prompt, output in zip(
            prompts, answer(run, prompts, decoding, device, data_root), strict=True
        ):
            if len(runs) > 1 or len(prompts) > 1:
                label = f"{run.label}: " if len(runs) > 1 else ""
                console.print(
                    f"> {label}{brief(prompt)}", style="bold", soft_wrap=True, highlight=False
                )
            console.print(output, soft_wrap=True, highlight=False)


def _checked(
    runs: list[Path], instructions: Path | None, prompts: list[str] | None, limit: int | None
) -> list[str]:
    """The prompts; refuses paths that do not exist, and anything but one run or two different
    ones.
    """
    if len(runs) > 2:
        raise UserError(f"{len(runs)} run folders: give one, or two to compare")
    if (instructions is None) == (not prompts):
        raise UserError("give either --instructions FILE or --prompt TEXT")
    if instructions is not None and not instructions.is_file():
        raise UserError(f"instructions file '{instructions}' does not exist")
    for path in runs:
        require_folder(path, "run folder")
    if len({path.resolve() for path in runs}) < len(runs):
        raise UserError(
            f"run folder '{runs[0]}' is given twice: give two different runs to compare"
        )
    return _read_prompts(prompts, limit) if prompts else []


def _read_prompts(prompts: list[str], limit: int | None) -> list[str]:
    if limit is not None:
        raise UserError("--limit: for --instructions only")
    if processes.count() > 1:
        raise UserError(
            "--prompt: runs in one process; start it without torchrun and accelerate launch"
        )
    read = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    if not all(prompt.strip() for prompt in read):
        raise UserError(
            "--prompt: the prompt is empty; give a text, or `-` and a text on standard input"
        )
    return read
