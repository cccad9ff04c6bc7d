"""What `cudt runs` knows about each run folder. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cudt.config import yaml
from cudt.config.differences import flat_values, names_apart, short_path, without_descent
from cudt.config.levels import distribution
from cudt.evaluation.tables import area_under_curve
from cudt.runs.info import RunInfo
from cudt.runs.run import OWN, RunFolder, find_runs
from cudt.utils.errors import UserError


@dataclass
class ListedRun:
    """One run folder, as `cudt runs` lists it. What a run does not have yet is None."""

    path: Path
    recipe: str
    model: str
    objective: str
    seed: int | None
    status: str
    settings: dict[str, Any] = field(repr=False)
    """Every setting that shapes training, by dotted key."""
    variant: str = ""
    """What sets the run apart from other runs of its recipe."""
    metric: str = ""
    score: float | None = None
    """The metric on validation data at γ_train."""
    ood: float | None = None
    """The mean metric over the noise levels above γ_train, on test data."""
    auc: float | None = None
    """The area under the metric over all noise levels."""
    feasible: bool | None = None
    monotone: bool | None = None
    begun: datetime | None = None

    def age(self, now: datetime) -> str:
        """`12 min`, `3 h` or `5 d` since training began."""
        if self.begun is None:
            return ""
        minutes = int((now - self.begun).total_seconds() // 60)
        return (
            f"{minutes} min"
            if minutes < 60
            else f"{minutes // 60} h"
            if minutes < 48 * 60
            else f"{minutes // 1440} d"
        )

    @property
    def verdict(self) -> str:
        """`feasible`, `monotone`, `both` or `neither`; empty before training has ended."""
        if self.feasible is None or self.monotone is None:
            return ""
        if self.feasible == self.monotone:
            return "both" if self.feasible else "neither"
        return "feasible" if self.feasible else "monotone"


def list_runs(folders: Sequence[Path]) -> tuple[list[ListedRun], list[str]]:
    """Every run below some folders, and a warning for each folder that cannot be read."""
    runs, problems = [], []
    for path in find_runs(folders):
        try:
            runs.append(_read(path))
        except (UserError, OSError, ValueError) as error:
            problems.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    _name_variants(runs)
    return runs, problems


def _read(path: Path) -> ListedRun:
    # Not validated: a run stays listed if its model is not installed here, and validation would
    # import torch.
    folder = RunFolder(path)
    values = yaml.parse_mapping(folder.read("recipe.yaml").decode(), str(path / "recipe.yaml"))
    info = folder.info()
    run = ListedRun(
        path,
        recipe=str(values.get("name", path.parent.name)),
        model=_model(values),
        objective=str(values.get("objective", "")),
        seed=values.get("seed"),
        status=info.status or "not started",
        settings=flat_values(values),
        feasible=info.feasible,
        monotone=info.monotone,
        begun=datetime.fromisoformat(info.begun) if info.begun else None,
    )
    if info.metric is not None:
        run.metric = info.metric.name
        _add_scores(run, folder, info)
    return run


def _model(values: dict[str, Any]) -> str:
    """The pretrained model, or the name of the architecture."""
    section = values.get("model")
    if not isinstance(section, dict):
        return ""
    return short_path(str(section.get("pretrained") or section.get("name", "")))


def _add_scores(run: ListedRun, folder: RunFolder, info: RunInfo) -> None:
    """The metric on validation data, and the OOD mean and AUC of its own weights on test data."""
    layers = folder.read_table("layers")
    validation = layers[layers["split"] == "validation"].sort_values("layer")
    if len(validation):
        run.score = float(validation["metric"].iloc[-1])
    ood, weights = folder.read_table("ood"), run.settings.get("training.select", "best")
    ood = ood[(ood["split"] == "test") & (ood["data"] == OWN) & (ood["weights"] == weights)]
    if ood.empty:
        return
    # The noise of training, which the paper's curves are drawn for; another one if that was not
    # evaluated.
    kinds = list(ood["noise"].unique())
    kind = run.settings.get("noise.kind") if run.settings.get("noise.kind") in kinds else kinds[0]
    curve = ood[ood["noise"] == kind].groupby("gamma")["value"].mean()
    outside = [
        level
        for level in curve.index
        if distribution(str(kind), level, info.gamma_train or 0.0) == "OOD"
    ]
    run.ood = float(curve[outside].mean()) if outside else None
    run.auc = area_under_curve(curve.index.tolist(), curve.tolist()) if len(curve) > 1 else None


def _name_variants(runs: Sequence[ListedRun]) -> None:
    """Name the variants of each recipe by the settings in which they differ; ERM runs, without
    constraints, apart.
    """
    named: dict[tuple[str, bool], list[tuple[ListedRun, dict[str, Any]]]] = {}
    for run in runs:
        is_erm = run.objective == "erm"
        settings = without_descent(run.settings) if is_erm else run.settings
        named.setdefault((run.recipe, is_erm), []).append((run, settings))
    for mine in named.values():
        # Runs that differ only in seed or objective have the same settings, and so the same name.
        distinct = {tuple(settings.items()): settings for _, settings in mine}
        names = dict(zip(distinct, names_apart(list(distinct.values())), strict=True))
        for run, settings in mine:
            run.variant = names[tuple(settings.items())]


#: The columns of `cudt runs --csv`.
COLUMNS = (
    *("recipe", "model", "variant", "objective", "seed", "status", "metric", "score", "ood", "auc"),
    *("feasible", "monotone", "verdict", "begun", "path"),
)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
