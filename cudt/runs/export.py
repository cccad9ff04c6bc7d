"""Exporting a trained model for other libraries, as transformers or peft saves it, with a model
card.
"""

from __future__ import annotations

from pathlib import Path

from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.card import Card, Library
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from cudt.utils.files import folder_next_to, make_readable, write_text


def export(run: Run, layerwise: LayerwiseLosses, target: Path) -> None:
    """Save the run's model, its tokenizer and a card into a new folder, which is renamed into
    place at the end, so that it is always complete.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with folder_next_to(target) as temporary:
        folder = temporary / target.name
        lines = layerwise.model.save_pretrained(folder)
        if lines is None:
            kind = run.recipe.settings.model.name
            raise UserError(f"{run.path}: no other library can load a model of kind {kind}")
        if layerwise.task.tokenizer is not None:
            layerwise.task.tokenizer.save_pretrained(folder)
        # Replaces peft's own card, which is an empty template.
        card = Card(library_of(folder), base_of(run), lines.replace("FOLDER", target.name))
        write_text(folder / "README.md", card.text(run))
        for file in folder.iterdir():
            make_readable(file)
        folder.replace(target)


def library_of(folder: Path) -> Library:
    """The library that loads an exported model."""
    return "peft" if (folder / "adapter_config.json").is_file() else "transformers"


def base_of(run: Run) -> str | None:
    """The pretrained model that training began with; None for a model without one."""
    began = getattr(run.recipe.settings.model, "pretrained", None)
    return None if began is None else str(began)
