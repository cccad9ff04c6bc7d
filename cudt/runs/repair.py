"""What to do about a damaged file of a run or a sweep."""

from __future__ import annotations

import shlex
from pathlib import Path

#: What writes each file again, after it was deleted; FOLDER is the folder of the file. Other files need the training.
_COMMANDS = {
    "ood.csv": "cudt eval-ood FOLDER",
    "layer_metrics.csv": "cudt eval-ood FOLDER",
    "examples.parquet": "cudt eval-ood FOLDER",
    "ratios.csv": "cudt eval-ood FOLDER",
    "ratio_bins.csv": "cudt eval-ood FOLDER",
    "constraints.csv": "cudt eval-ood FOLDER",
    "descent.csv": "cudt eval-ood FOLDER",
    "samples": "cudt eval-ood FOLDER --save-samples N",
    "exits.csv": "cudt eval-ood FOLDER --exits",
    "completions": "cudt generate FOLDER …",
    "model": "cudt train --recipe FOLDER/recipe.yaml",
}
#: The files of a sweep that it writes again.
_OF_SWEEPS = ("sweep.json", "trials.csv", "trials_wide.csv", "best.csv", "best.yaml", "best")
_CHECKSUMS = "checksums.json"
_AGAIN = (
    "restore it, or delete {folder} to train again; if the change is your own (another version of cudt, or a copy of a "
    "run that was training), delete {checksums} to accept all files as they are"
)


def advice_about(folder: Path, name: str) -> str:
    """What the user can do about a damaged file."""
    first = Path(name).parts[0]
    if first == _CHECKSUMS:
        return "restore it, or delete it to read the files of this folder without a check"
    if first in _OF_SWEEPS:
        return "run the sweep again to rewrite it"
    if first == "validation.csv":
        return "delete it and run the sweep again"
    command = remade_by(folder, name)
    if command is None:
        return _AGAIN.format(folder=folder, checksums=folder / _CHECKSUMS)
    deleted = folder / first if first == "model" else "it"
    return f"delete {deleted} and run `{command}`"


def remade_by(folder: Path, name: str) -> str | None:
    """The command that writes a file again after it was deleted; None if only training does."""
    command = _COMMANDS.get(Path(name).parts[0])
    return None if command is None else command.replace("FOLDER", shlex.quote(str(folder)))
