"""`cudt eval-ood`: evaluate trained runs on perturbed test data; `cudt generate`: let them answer
instructions under noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli import options
from cudt.utils.errors import UserError

Gammas = Annotated[
    str | None, typer.Option(help="Noise levels γ, for example 0:2.1:0.15 or 0,0.5,1.")
]
Probabilities = Annotated[
    str | None, typer.Option(help="Levels p of discrete noise, written like --gammas.")
]
NoiseSeeds = Annotated[
    options.Words, typer.Option(metavar="N,...", help="Seeds of the noise, for example 0,1,2.")
]
Exits = Annotated[
    bool, typer.Option("--exits", help="Also early exit: accuracy against depth and FLOPs.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Evaluate levels again that the tables already have.")
]
Instructions = Annotated[
    Path | None,
    typer.Option(help="File with a column `instruction`, and optionally `input` and `dataset`."),
]
Prompts = Annotated[
    options.Words, typer.Option("--prompt", help="Instruction to answer. Repeatable.")
]
Gamma = Annotated[
    float, typer.Option(min=0, help="Noise level γ on every token, including generated ones.")
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens in a completion.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Number of instructions answered together.")]


def eval_ood(
    run: options.RunFolders,
    gammas: Gammas = None,
    probabilities: Probabilities = None,
    perturbation: options.Perturbations = None,
    noise_seed: NoiseSeeds = None,
    save_samples: options.SavedSamples = 0,
    weights: options.Weights = None,
    exits: Exits = False,
    on: options.OnData = None,
    again: Again = False,
    workers: options.Workers = 1,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
) -> None:
    """Evaluate trained runs on test data perturbed at each noise level of a grid.

    Results are added to the tables in each run folder (ood.csv, layers.csv,
    examples.parquet); levels that were evaluated before are skipped. Other noise seeds than
    before replace the rows of a kind of noise.
    """
    kinds, seeds = options.split_list(perturbation), options.parse_seeds("--noise-seed", noise_seed)
    from cudt.config.recipe import other_data
    from cudt.evaluation import evaluate
    from cudt.evaluation.tables import result_table
    from cudt.runs.run import open_run

    runs = [open_run(path, weights) for path in dict.fromkeys(run)]
    asked, grids = (gammas, probabilities, kinds or None, seeds or None), []
    for one in runs:
        other = other_data(one.recipe.settings.task, on) if on else None
        grids.append(evaluate.Grid(*asked, other, exits, save_samples, again))
        evaluate.check(one, grids[-1])
    failed, where = False, (workers, device, data_root, options.progress())
    for number, result in evaluate.evaluate_all(runs, grids, *where):
        if isinstance(result, BaseException):
            if len(runs) == 1:
                raise result
            failed = True
            options.say(f"error: {runs[number].path}: {result}", stderr=True)
            continue
        if not result:
            options.say(f"already evaluated: {runs[number].path} (--again repeats it)")
        tested = grids[number].of(runs[number])
        options.say(tested.label)
        options.print_table(result_table(tested, with_exits=exits))
        options.say(f"written to {runs[number].path / 'ood.csv'} and the tables next to it")
    if failed:
        raise typer.Exit(1)


def generate(
    run: options.RunFolders,
    instructions: Instructions = None,
    prompt: Prompts = None,
    gamma: Gamma = 0.0,
    noise_seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 8,
    weights: options.Weights = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
) -> None:
    """Answer instructions under noise: those of a file, or prompts.

    The completions of a file are written to the run folder in AlpacaEval's format; existing ones
    are kept, and only missing ones are generated. Those of prompts are printed.
    """
    if (instructions is None) == (not prompt):
        raise UserError("give either --instructions FILE or --prompt TEXT")
    from cudt.evaluation import generate as generation
    from cudt.runs.run import open_run

    opened = [open_run(path, weights) for path in run]
    for one in opened:
        generation.check(one)
    how = generation.Decoding(gamma, noise_seed, max_new_tokens, batch_size)
    for one in opened:
        if instructions is None:
            for output in generation.answer(one, prompt or [], how, device, data_root):
                options.say(f"{one.label}: {output}")
            continue
        where = (device, data_root, options.progress())
        with one.locked():
            path = generation.generate(one, instructions, how, *where)
        options.say(f"completions in {path}")
