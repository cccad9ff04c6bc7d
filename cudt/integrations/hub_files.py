"""The files of a finished run as they are uploaded to the Hugging Face hub: the model at the top, its card and results.

Nothing in them says who trained the run, or where: absolute paths are cut to their last part, and run.json keeps
neither the data root nor the command. The downloaded folder is a run folder: cudt reads its tables, and for models
that no other library loads also its weights.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from cudt.config import registry, strict_yaml
from cudt.data import hub
from cudt.data.records import HubSet
from cudt.noise.base import scale_of
from cudt.report.collect import ReadRun, read_run
from cudt.report.groups import read_groups
from cudt.report.tables import curves
from cudt.runs import card, checksums, export
from cudt.runs.card import Card, CardFigure, NoiseResult, TestedOn
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from cudt.utils.errors import UserError

#: Where each file of an upload comes from: its content, or a file of the run folder.
Files = dict[str, bytes | Path]
_FIGURE = "layer_losses_and_noise.png"
#: Keys of run.json that are of no use to others, or say where the run was trained.
_PRIVATE = ("reason", "data_root")
#: The folder of the exported model in the upload.
_TOP = "."
_ELSEWHERE = re.compile(r"[/~\\]|\.\.|[A-Za-z]:[/\\]")
_DOWNLOAD = 'from huggingface_hub import snapshot_download\n\nsnapshot_download({}, local_dir="{}")\n'
#: Python code for a model that only cudt loads.
_WITH_CUDT = """\
import cudt

run = cudt.open_run("FOLDER")
print(run.read_table("ood"))
cudt.evaluate(run, gammas=[0, 0.5])  # on the data of recipe.yaml
"""


@dataclass(frozen=True)
class Target:
    """Where a run is uploaded to."""

    repository: str
    branch: str | None = None

    @property
    def shown(self) -> str:
        """The arguments that download it."""
        branch = "" if self.branch is None else f", revision={json.dumps(self.branch)}"
        return f"{json.dumps(self.repository)}{branch}"


def files_of(run: Run, target: Target) -> Files:
    """The files of a run, for a repository on the hub. Refuses a run that is not finished or has no weights."""
    run.finished_info()
    if run.results != run.path:
        raise UserError(f"'{run.results}': results of other weights or data cannot be uploaded; give '{run.path}'")
    if run.info().saved_model == _TOP:
        raise UserError(f"'{run.path}' was downloaded from the hub; upload the run folder that it was made from")
    files = _model(run)
    read = read_run(run.path)
    if not read.ood.empty:
        files |= {"ood.csv": checksums.read_checked(run.path, "ood.csv"), **_figure(read)}
    files["README.md"] = _card(read, target, has_figure=_FIGURE in files).text(run).encode()
    files["recipe.yaml"] = _published_recipe(run)
    files["run.json"] = _published_info(run)
    return dict(sorted(files.items()))


def _model(run: Run) -> Files:
    """The exported model without its card; the weights alone of a model that only cudt loads."""
    info = run.finished_info()
    if info.saved_model is not None and export.is_done(run):
        found: Files = {}
        for path in sorted(path for path in (run.path / info.saved_model).rglob("*") if path.is_file()):
            name = path.relative_to(run.path).as_posix()
            checksums.check_file(run.path, name)
            found[name.removeprefix(f"{info.saved_model}/")] = path
        del found["README.md"]
        if "adapter_config.json" in found:
            found["adapter_config.json"] = _adapter_config(run, run.path / info.saved_model / "adapter_config.json")
        return found
    weights = run.weights_file(run.weights)
    if not weights.is_file():
        raise UserError(f"'{run.path}' has no weights to upload; train it with checkpoints.keep: {run.weights}")
    if not export.is_done(run):
        raise UserError(
            f"'{run.path}' has no complete {export.FOLDER}/; run `cudt train` with the same recipe, which exports it"
        )
    name = weights.relative_to(run.path).as_posix()
    checksums.check_file(run.path, name)
    return {name: weights}


def _adapter_config(run: Run, file: Path) -> bytes:
    """An adapter's configuration with the name of its base model in place of the folder that it was loaded from."""
    values = json.loads(file.read_bytes())
    values["base_model_name_or_path"] = _base(run) or _last_part(values["base_model_name_or_path"])
    return (json.dumps(values, indent=2) + "\n").encode()


def _base(run: Run) -> str | None:
    """The pretrained model of a run as the hub calls it; None without one, and for one that is not on the hub."""
    name = export.base_of(run)
    return None if name is None else hub.name_on_hub(name)


def _card(read: ReadRun, target: Target, *, has_figure: bool) -> Card:
    run, folder = read.run, export.FOLDER
    is_exported = read.info.saved_model is not None
    lines = card.code_in(run.path / folder / "README.md") if is_exported else _WITH_CUDT.replace("FOLDER", folder)
    if lines is None:
        raise UserError(
            f"{run.path / folder / 'README.md'}: no Python code; delete {folder}/ and run `cudt train` again"
        )
    return Card(
        export.library_of(run.path / folder) if is_exported else "cudt",
        _base(run),
        # The code is that of the local card: it loads from a folder next to the reader.
        f"{_DOWNLOAD.format(target.shown, folder)}\n{lines}",
        target.repository,
        _tested_on(read),
        [*_results(read)],
        CardFigure(_FIGURE, f"Loss by layer, and {read.metric} under noise") if has_figure else None,
    )


def _results(read: ReadRun) -> Iterator[NoiseResult]:
    """The metric at each level of noise, averaged over noise seeds."""
    if read.ood.empty:
        return
    for row in curves([read]).sort_values(["perturbation", "gamma"]).to_dict("records"):
        kind = str(row["perturbation"])
        yield NoiseResult(
            kind, scale_of(kind).symbol, row["gamma"], row["place"], row["mean"], row["low"], row["high"], int(row["n"])
        )


def _tested_on(read: ReadRun) -> TestedOn:
    """The test data: a dataset of the hub where the task has one, else the name of the task."""
    recipe = read.run.recipe
    task = _without_folders(recipe.settings.task.model_dump(mode="json"))
    source = getattr(registry.load("task", task["name"]), "SOURCE", None)
    if task.get("hub") is not None:
        source = HubSet(task["hub"], task["subset"])
    if not isinstance(source, HubSet) or task.get("file") is not None:
        return TestedOn(_kind_of_task(read), task["name"], recipe.name, None, "test")
    split = task["test"] if isinstance(task.get("test"), str) else "test"
    return TestedOn(_kind_of_task(read), source.repository, source.repository, source.subset, split)


def _kind_of_task(read: ReadRun) -> str:
    """The task in the hub's words."""
    if read.run.recipe.settings.model.generates_text:
        return "text-generation"
    if read.info.has_pictures:
        return "video-to-video"
    return "text-classification" if read.metric == "accuracy" else "other"


def _figure(read: ReadRun) -> Files:
    """The losses of the layers next to the metric under noise, as PNG; nothing if there is no curve."""
    from cudt.report.figures import save
    from cudt.report.figures.choose import main_kind
    from cudt.report.figures.descent_and_robustness import draw

    groups = read_groups([read])
    kind = main_kind(groups)
    if kind is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        return {_FIGURE: save(draw(groups, kind), read.recipe, Path(folder, "figure")).png.read_bytes()}


def _published_recipe(run: Run) -> bytes:
    """recipe.yaml without the folders of models and data."""
    values = run.recipe.resolved()
    return strict_yaml.dump(values | {key: _without_folders(values[key]) for key in ("task", "model")}).encode()


def _published_info(run: Run) -> bytes:
    """run.json without what is private; keys that this version does not know are left out."""
    values = run.finished_info().model_dump(mode="json", exclude_unset=True)
    kept = {key: values[key] for key in RunInfo.model_fields if key in values and key not in _PRIVATE}
    # What repeats the run from the uploaded folder, where the model is at the top.
    kept |= {"command": "cudt train --recipe recipe.yaml"}
    kept |= {"saved_model": _TOP} if values.get("saved_model") else {}
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()


def _without_folders(value: Any) -> Any:
    """The values with every absolute path cut to its last part."""
    if isinstance(value, dict):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return _last_part(value) if isinstance(value, str) and _ELSEWHERE.match(value) else value


def _last_part(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name
