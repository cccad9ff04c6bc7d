"""A trained model for people who do not use cudt: as transformers or peft saves it, with a model card."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from cudt.files import write_text
from cudt.layerwise import LayerwiseLosses
from cudt.runs import Run


def export(run: Run, layerwise: LayerwiseLosses) -> Path | None:
    """Save the run's best model, its tokenizer and a card into `model/`; None for a model that only cudt knows."""
    folder = run.path / "model"
    lines = layerwise.model.save_pretrained(folder)
    if lines is None:
        return None
    if layerwise.task.tokenizer is not None:
        layerwise.task.tokenizer.save_pretrained(folder)
    # The last: where the card is, the rest is whole.
    write_text(folder / "README.md", card(run, lines))
    return folder


def card(run: Run, lines: str) -> str:
    """The model card; `lines` load the model where it is copied to, with FOLDER for the folder."""
    loader = PackageLoader("cudt", ".")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    table = run.read_table("layers")
    return environment.get_template("model_card.md").render(
        info=run.info(),
        layers=table[table["split"] == "validation"].to_dict("records"),
        base=getattr(run.recipe.settings.model, "pretrained", None),
        is_adapter=(run.path / "model" / "adapter_config.json").is_file(),
        lines=lines.replace("FOLDER", "model"),
    )
