"""Exporting a trained model for other libraries, as transformers or peft saves it, with a model card."""

from __future__ import annotations

import shutil

from jinja2 import Environment, PackageLoader, StrictUndefined

from cudt.method.objectives.base import objective_class
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs import checksums
from cudt.runs.run import Run
from cudt.utils import temporaries
from cudt.utils.files import make_readable, write_text

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
    """Save the run's model, its tokenizer and a card; return the folder's name, or None if only cudt can load it.

    The folder is renamed into place at the end, so that it is always complete.
    """
    with temporaries.folder_next_to(run.path / FOLDER) as temporary:
        folder = temporary / FOLDER
        lines = layerwise.model.save_pretrained(folder)
        if lines is None:
            return None
        if layerwise.task.tokenizer is not None:
            layerwise.task.tokenizer.save_pretrained(folder)
        # Replaces peft's own card, which is an empty template.
        write_text(folder / "README.md", card(run, lines, is_adapter=(folder / "adapter_config.json").is_file()))
        for file in folder.iterdir():
            make_readable(file)
        checksums.forget(run.path, *_recorded(run))
        shutil.rmtree(run.path / FOLDER, ignore_errors=True)
        folder.replace(run.path / FOLDER)
    saved = sorted(file for file in (run.path / FOLDER).rglob("*") if file.is_file())
    checksums.record_existing(run.path, *(file.relative_to(run.path).as_posix() for file in saved))
    return FOLDER


def _recorded(run: Run) -> list[str]:
    """The files of the exported model whose digests are known."""
    return [name for name in checksums.recorded(run.path) if name.startswith(f"{FOLDER}/")]


def card(run: Run, lines: str, *, is_adapter: bool) -> str:
    """The model card; `lines` is the Python code that loads the model, with FOLDER for its folder."""
    loader = PackageLoader("cudt.runs", ".")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    table, info = run.read_table("layers"), run.finished_info()
    return environment.get_template("model_card.md").render(
        info=info,
        objective=environment.from_string(objective_class(info.objective).card).render(info=info),
        layers=table[table["split"] == "validation"].to_dict("records"),
        base=_base(run),
        is_adapter=is_adapter,
        lines=lines.replace("FOLDER", FOLDER),
    )


def _base(run: Run) -> str | None:
    """The pretrained model that training began with."""
    model = run.recipe.settings.model
    return getattr(model, "trained_from", None) or getattr(model, "pretrained", None)
