"""`cudt export`: the model of a run for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli.options import DataRoot, require_folder
from cudt.cli.terminal import make_console

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Target = Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder of the model.")]


def export(run: RunFolder, folder: Target, data_root: DataRoot = None) -> None:
    """Save the trained model with its tokenizer and a card, as transformers or peft loads it."""
    require_folder(run, "run folder")
    from cudt.runs import export as exporting
    from cudt.runs.find import open_run
    from cudt.training.train import load

    opened = open_run(run)
    exporting.export(opened, load(opened, "cpu", data_root), folder)
    make_console().print(f"model in {folder}", soft_wrap=True)
