"""Exporting a trained model for other libraries, as transformers or peft saves it, with a model
card.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs import checksums
from cudt.runs.card import Card, Library
from cudt.runs.run import Run
from cudt.utils.files import folder_next_to, make_readable, write_text

#: The folder of the exported model, in the run folder.
FOLDER = "model"


def is_done(run: Run) -> bool:
    """Whether a finished run's model is exported, or known not to be exportable."""
    info = run.info()
    if "saved_model" not in info.model_fields_set:
        return False
    if info.saved_model is None:
        return True
    is_whole = not any(checksums.is_lost(run.path, name) for name in _recorded(run))
    return (run.path / info.saved_model).is_dir() and is_whole


def export(run: Run, layerwise: LayerwiseLosses) -> str | None:
    """Save the run's model, its tokenizer and a card; return the folder's name, or None if only
    cudt can load it.

    The folder is renamed into place at the end, so that it is always complete.
    """
    with folder_next_to(run.path / FOLDER) as temporary:
        folder = temporary / FOLDER
        lines = layerwise.model.save_pretrained(folder)
        if lines is None:
            return None
        if layerwise.task.tokenizer is not None:
            layerwise.task.tokenizer.save_pretrained(folder)
        # Replaces peft's own card, which is an empty template.
        card = Card(library_of(folder), base_of(run), lines.replace("FOLDER", FOLDER))
        write_text(folder / "README.md", card.text(run))
        for file in folder.iterdir():
            make_readable(file)
        checksums.forget(run.path, *_recorded(run))
        shutil.rmtree(run.path / FOLDER, ignore_errors=True)
        folder.replace(run.path / FOLDER)
    saved = sorted(file for file in (run.path / FOLDER).rglob("*") if file.is_file())
    checksums.record_existing(run.path, *(file.relative_to(run.path).as_posix() for file in saved))
    return FOLDER


def library_of(folder: Path) -> Library:
    """The library that loads an exported model."""
    return "peft" if (folder / "adapter_config.json").is_file() else "transformers"


def _recorded(run: Run) -> list[str]:
    """The files of the exported model whose digests are known."""
    return [name for name in checksums.recorded(run.path) if name.startswith(f"{FOLDER}/")]


def base_of(run: Run) -> str | None:
    """The pretrained model that training began with; None for a model without one."""
    began = getattr(run.recipe.settings.model, "pretrained", None)
    return None if began is None else str(began)
