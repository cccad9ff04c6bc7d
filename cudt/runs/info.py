"""run.json as typed models, shared by everything that writes or reads it.

`RunInfo` is the file at any time: what is not known yet is None. `FinishedInfo` is the file of a
finished run: what every finished run has is required. Keys that this version does not know are kept
when the file is written again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from cudt.config.schema import ObjectiveName, Weights
from cudt.runs import checksums
from cudt.utils.errors import UserError
from cudt.utils.reading import json_object

#: The version of the run folder's format.
FORMAT = 1

_NAME = "run.json"
#: The file that says what was evaluated with weights or on data that are not the run's own, in
#: their subfolder. It is not called run.json, because that marks a run folder.
EVALUATION = "evaluation.json"

Status = Literal["running", "interrupted", "failed", "finished"]


class InfoPart(BaseModel):
    """An object in run.json; strict, so that a text is never read as a number."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class MetricInfo(InfoPart):
    """The task's metric."""

    name: str
    higher_is_better: bool
    of_mean: str
    """How the metric follows from the mean score of the examples: it is the mean, or its root."""


class BestEpoch(InfoPart):
    """The epoch whose weights are the run's own: the best one, or the last with training.select:
    last.
    """

    epoch: int
    validation_loss: float
    step: int | None = None
    """The update after which they were validated."""


class StoppedEarly(InfoPart):
    """Where `training.early_stopping` ended a training."""

    epoch: int
    step: int
    """The last update."""
    validations: int
    """Validations in a row without better weights."""


class SigmaX(InfoPart):
    """The standard deviation σ_x of the signal, as training and as evaluation use it."""

    training: float
    evaluation: float


class VerdictInfo(InfoPart):
    """The verdict about one layer's constraint (`cudt.method.constraints.LayerVerdict`)."""

    layer: int
    loss: float
    allowed: float
    violation: float
    standard_error: float
    slack: float
    verdict: str


class MultiplierInfo(InfoPart):
    """The multipliers λ_1 … λ_L at the end of the best epoch and of the last one."""

    best: list[float] | None
    last: list[float]


class EvaluationNote(InfoPart):
    """What one kind of noise was evaluated at: levels, noise seeds, and the number of examples with
    pictures.
    """

    levels: list[float]
    seeds: list[int]
    samples: int


class RunInfo(InfoPart):
    """run.json. The fields are in the order of the keys in the file."""

    format: int | None = None
    """Version of the run folder's format."""
    status: Status | None = None
    """None for a folder without run.json."""
    reason: str | None = None
    """Why the run failed, or was ended early by a sweep (`cudt train` resumes it)."""
    recipe: str | None = None
    objective: str | None = None
    seed: int | None = None
    variant: str | None = None
    """The hash of all settings but the seed."""
    task_version: int | None = None
    """Version of the task's data and loss."""
    training_data: str | None = None
    """Fingerprint of the training and validation data."""
    data_notes: dict[str, int] = {}
    """Number of examples that were truncated or skipped, by reason."""
    data_root: str | None = None
    """The data root given for training, which later commands use; None for the default."""
    revisions: dict[str, str] = {}
    """Commits on the hub of the pretrained model (`model`) and of the data (`task`) that the run
    was started with; without those that come from this machine."""
    frozen_weights: str | None = None
    """Fingerprint of the pretrained weights that are not trained (LoRA)."""
    metric: MetricInfo | None = None
    has_texts: bool = True
    """Whether noise in source texts can be evaluated."""
    has_pictures: bool = False
    """Whether pictures of test examples can be saved."""
    windows_of_clips: bool = False
    """Whether examples are windows of clips, which intervals resample as a whole."""
    gamma_train: float | None = None
    layers: int | None = None
    """Number of layers L."""
    parameters: int | None = None
    """Number of the model's parameters."""
    reference: float | None = None
    """The loss f_0."""
    rates: list[float] | None = None
    """The rates α_1 … α_L."""
    form: str | None = None
    """The form of the constraints."""
    device: str | None = None
    processes: int | None = None
    """Number of processes that train together."""
    sharded: bool = False
    """Whether the processes shared the weights, a part in each."""
    autocast: str | None = None
    """Mixed precision of Accelerate: no or bf16."""
    versions: dict[str, str] = {}
    """Versions of Python, cudt and its libraries."""
    command: str | None = None
    """The command that started the run."""
    begun: str | None = None
    """When the run was started, UTC."""
    best: BestEpoch | None = None
    """The epoch whose weights are the run's own: the best one, or the last with training.select:
    last."""
    stopped_early: StoppedEarly | None = None
    """Not set in runs that trained all their epochs."""
    sigma_x: SigmaX | None = None
    feasible: bool | None = None
    """Whether every layer's constraint is met or borderline."""
    monotone: bool | None = None
    """Whether every layer lowers the loss."""
    verdicts: list[VerdictInfo] | None = None
    multipliers: MultiplierInfo | None = None
    """At the end of the best epoch and of the last one."""
    ended: str | None = None
    """When the run ended, UTC."""
    saved_model: str | None = None
    """The folder of the exported model; None where the model cannot be exported, not set where it
    was not tried."""
    evaluated: dict[str, EvaluationNote] = {}
    """By kind of noise."""
    test_data: str | None = None
    """Fingerprint of the test data."""
    other_task: dict[str, Any] | None = None
    """Only in evaluation.json: the `task` section of test data that are not the run's own."""


class FinishedInfo(RunInfo):
    """The run.json of a finished run."""

    status: Literal["finished"]
    recipe: str
    objective: ObjectiveName
    seed: int
    variant: str
    metric: MetricInfo
    gamma_train: FiniteFloat
    layers: int
    reference: float
    command: str
    best: BestEpoch
    sigma_x: SigmaX
    feasible: bool
    monotone: bool
    verdicts: list[VerdictInfo] = Field(min_length=1)


@dataclass(frozen=True)
class Subfolder:
    """Where the results of weights or data are that are not the run's own; without both, the run
    folder itself.
    """

    weights: Weights | None = None
    data: str | None = None
    """The name of the folder of other data, like `on-avenue`."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in (self.weights, self.data) if part is not None)


#: The results of the run's own weights on its own data.
OWN = Subfolder()


def read_info(folder: Path, inside: Subfolder = OWN) -> RunInfo:
    """The run.json of a folder; all defaults where there is none.

    `inside` is where results of other weights or on other data are; a file there says what was
    evaluated.
    """
    return _validated(RunInfo, folder, inside)


def read_finished_info(folder: Path, inside: Subfolder = OWN) -> FinishedInfo:
    """The run.json of a finished run, as `read_info` reads it; a UserError for a run that is not
    finished.
    """
    status = read_info(folder).status
    if status != "finished":
        raise UserError(
            f"'{folder}' is {status or 'not started'}, not finished; "
            "run `cudt train` with the same recipe and settings to resume it"
        )
    return _validated(FinishedInfo, folder, inside)


def read_format(folder: Path) -> Any:
    """The format that a run.json says it has, before the rest of the file is checked; None where it
    says none.
    """
    return _read_values(folder, _NAME).get("format")


def write_info(folder: Path, changes: RunInfo, inside: Subfolder = OWN) -> None:
    """Replace in run.json the keys that `changes` sets; all others stay, also those that this
    version does not know.

    With a subfolder, write to its file instead.
    """
    at, name = _file_of(folder, inside)
    begin = (
        {"format": FORMAT}
        if inside.weights is None
        else {"format": FORMAT, "weights": inside.weights}
    )
    values = {**begin, **_read_values(at, name), **changes.model_dump(exclude_unset=True)}
    checksums.write_checked(
        at, name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
    )


_Info = TypeVar("_Info", bound=RunInfo)


def _file_of(folder: Path, inside: Subfolder) -> tuple[Path, str]:
    """The folder and the name of the file."""
    return (folder, _NAME) if inside == OWN else (folder.joinpath(*inside.parts), EVALUATION)


def _validated(kind: type[_Info], folder: Path, inside: Subfolder) -> _Info:
    at, name = _file_of(folder, inside)
    values = _read_values(folder, _NAME)
    if inside.data is not None:
        values = {**values, "test_data": None, "data_notes": {}}
    if inside != OWN:
        values = {**values, "evaluated": {}, **_read_values(at, name)}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise checksums.damage(at, name, f"missing key {key}") from None
        reason = "Input should be an object" if first["type"] == "model_type" else first["msg"]
        raise checksums.damage(at, name, f"{key}: {reason}") from None


def _read_values(folder: Path, name: str) -> dict[str, Any]:
    """The file as it is; empty where there is none."""
    try:
        return checksums.read_as(folder, name, json_object)
    except FileNotFoundError:
        return {}
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{folder / name}: cannot be read ({error.strerror})") from None
