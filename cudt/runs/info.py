"""run.json as typed models: `RunInfo` is the file at any time, where what is not known yet is None;
`FinishedInfo` is that of a finished run, where what every finished run has is required.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from cudt.config.schema import ObjectiveName

Form = Literal["linear", "log", "ladder"]
Status = Literal["running", "interrupted", "failed", "finished"]


class InfoPart(BaseModel):
    """An object in run.json; strict, so that a text is never read as a number."""

    model_config = ConfigDict(strict=True, frozen=True)


class MetricInfo(InfoPart):
    """The task's metric: the mean score of the examples, or its root, as `of_mean` says."""

    name: str
    higher_is_better: bool
    of_mean: str


class BestEpoch(InfoPart):
    """The epoch and the update whose weights are the run's own (`training.select`)."""

    epoch: int
    validation_loss: float
    step: int | None = None


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
    """λ_1 … λ_L at the end of the best epoch and of the last one."""

    best: list[float] | None
    last: list[float]


class OtherTest(InfoPart):
    """Test data of another task: its section of a recipe, and the fingerprint of the data."""

    task: dict[str, Any]
    test_data: str


class RunInfo(InfoPart):
    """run.json. The fields are in the order of the keys in the file."""

    status: Status | None = None  # None for a folder without run.json
    reason: str | None = None  # why it failed, or was ended early by a sweep
    recipe: str | None = None
    objective: str | None = None
    seed: int | None = None
    variant: str | None = None  # the hash of all settings but the seed
    training_data: str | None = None  # fingerprint of training and validation data
    frozen_weights: str | None = None  # fingerprint of pretrained weights that are not trained
    metric: MetricInfo | None = None
    has_texts: bool = True  # noise in source texts can be evaluated
    has_pictures: bool = False  # pictures of test examples can be saved
    windows_of_clips: bool = False  # examples are windows; intervals resample whole clips
    gamma_train: float | None = None
    layers: int | None = None  # the number of layers L
    reference: float | None = None  # the loss f_0
    rates: list[float] | None = None  # α_1 … α_L
    form: Form | None = None  # the form of the constraints
    device: str | None = None
    processes: int | None = None
    sharded: bool = False  # the processes shared the weights, a part in each
    versions: dict[str, str] = {}
    command: str | None = None  # what started the run
    begun: str | None = None  # UTC
    best: BestEpoch | None = None
    stopped_early: int | None = None  # the update after which training ended early
    seconds: float | None = None  # of training, without interruptions
    sigma_x: SigmaX | None = None
    judged_on: int | None = None  # validation examples, or clips where they are windows
    feasible: bool | None = None  # every layer's constraint is met or borderline
    monotone: bool | None = None  # every layer lowers the loss
    verdicts: list[VerdictInfo] | None = None
    multipliers: MultiplierInfo | None = None
    ended: str | None = None  # UTC
    test_data: str | None = None  # fingerprint of the test data
    other_tests: dict[str, OtherTest] = {}  # test data of other tasks, by name
    flops: list[float] | None = None  # of an example that leaves after layer 1 … L, and of all
    files: dict[str, list[str | None]] = {}  # the SHA-256 of each file; None if it may be missing


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
    rates: list[float]
    form: Form
    command: str
    best: BestEpoch
    sigma_x: SigmaX
    feasible: bool
    monotone: bool
    verdicts: list[VerdictInfo] = Field(min_length=1)
