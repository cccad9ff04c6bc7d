"""`cudt export`: a trained model for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli.options import DataRoot, EvaluatedWeights, require_folder
from cudt.cli.terminal import make_console


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    folder: Annotated[Path, typer.Argument(help="New folder for the model.", show_default=False)],
    weights: EvaluatedWeights = None,
    data_root: DataRoot = None,
) -> None:
    """Write a trained model as transformers or peft loads it, with its tokenizer and a model card.
    `hf upload NAME FOLDER` puts it on the hub.
    """
    require_folder(run, "run folder")
    from cudt.runs.export import export as export_model
    from cudt.runs.run import open_run
    from cudt.training.train import load

    opened = open_run(run, weights.value if weights else None)
    opened.finished_info()
    export_model(opened, load(opened, "cpu", data_root), folder)
    make_console().print(f"model and card in {folder}", soft_wrap=True)
