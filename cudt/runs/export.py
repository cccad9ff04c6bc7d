"""Exporting a trained model for other libraries, as transformers or peft saves it, with a model card."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from cudt.method.objectives.base import objective_class
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run
from cudt.utils.files import make_readable, write_text

#: The folder of the exported model, in the run folder.
FOLDER = "model"


def is_done(run: Run) -> bool:
    """Whether a finished run's model is exported, or known not to be exportable."""
    info = run.info()
    if "saved_model" not in info.model_fields_set:
        return False
    return info.saved_model is None or (run.path / info.saved_model).is_dir()


def export(run: Run, layerwise: LayerwiseLosses) -> str | None:
    """Save the run's model, its tokenizer and a card; return the folder's name, or None if only cudt can load it.

    The folder is renamed into place at the end, so that it is always complete.
    """
    with tempfile.TemporaryDirectory(dir=run.path, prefix=".saving.") as name:
        folder = Path(name) / FOLDER
        lines = layerwise.model.save_pretrained(folder)
        if lines is None:
            return None
        if layerwise.task.tokenizer is not None:
            layerwise.task.tokenizer.save_pretrained(folder)
        # Replaces peft's own card, which is an empty template.
        write_text(folder / "README.md", card(run, lines, is_adapter=(folder / "adapter_config.json").is_file()))
        for file in folder.iterdir():
            make_readable(file)
        shutil.rmtree(run.path / FOLDER, ignore_errors=True)
        folder.replace(run.path / FOLDER)
    return FOLDER


def card(run: Run, lines: str, *, is_adapter: bool) -> str:
    """The model card; `lines` is the Python code that loads the model, with FOLDER for its folder."""
    loader = PackageLoader("cudt.runs", ".")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    table, info = run.read_table("layers"), run.finished_info()
    return environment.get_template("model_card.md").render(
        info=info,
        objective=environment.from_string(objective_class(info.objective).card).render(info=info),
        layers=table[table["split"] == "validation"].to_dict("records"),
        base=getattr(run.recipe.settings.model, "pretrained", None),
        is_adapter=is_adapter,
        lines=lines.replace("FOLDER", FOLDER),
    )
