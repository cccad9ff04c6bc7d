"""How far an experiment is, as its storage knows it; reads only, so that a plan writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from cudt.reproduce import cost
from cudt.reproduce.evaluation import EvaluationQueue, chosen, is_evaluated
from cudt.reproduce.scale import Experiment, Reproduction
from cudt.reproduce.stored import ReproduceOptions
from cudt.runs.find import run_for
from cudt.sweep import plan as sweep_plans
from cudt.sweep import recovery
from cudt.sweep.definition import Sweep
from cudt.sweep.holder import Holder
from cudt.sweep.lease import known_home
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.storage import has_studies, open_storage
from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Progress:
    """What was done of an experiment, and what it took."""

    evaluated: int = 0
    """Runs whose evaluation is complete."""
    seconds: float = 0.0
    """Of the finished training runs, on whatever machine."""
    operations: float = 0.0
    """Estimated operations of the same runs."""

    @property
    def per_operation(self) -> float:
        return self.seconds / self.operations


NO_PROGRESS = Progress()


def of(experiment: Experiment, options: SweepOptions) -> Progress:
    """The progress of an experiment on all machines."""
    arms = sweep_plans.known_studies(experiment.sweep, options)
    if not arms:
        return Progress(_evaluated_here(experiment, options))
    home, elsewhere = known_home(options.out), _evaluated_elsewhere(experiment, arms)
    runs = chosen(experiment, arms) if all(arm.is_done for arm in arms) else []
    evaluated = sum(
        is_evaluated(experiment, options.out / run.path, options.data_root)
        if run.home in (None, home)
        else (run.home, run.path) in elsewhere
        for run in runs
    )
    return Progress(evaluated, *_spent(experiment, arms))


def _evaluated_here(experiment: Experiment, options: SweepOptions) -> int:
    """The evaluated runs of an experiment that was never begun in this folder: they were restored to it.

    Only a sweep that was begun knows its best runs.
    """
    if experiment.listed.evaluate != "all":
        return 0
    recipes = [recipe for _, recipe, _ in sweep_plans.cells(experiment.sweep, options) if recipe is not None]
    paths = [run_for(recipe, options.out).path for recipe in recipes]
    return sum(is_evaluated(experiment, path, options.data_root) for path in paths)


def _evaluated_elsewhere(experiment: Experiment, arms: list[ArmStudy]) -> set[tuple[str, str]]:
    """The home and path of every run whose evaluation is finished in the storage."""
    storage, found = arms[0].storage, set()
    start = f"{EvaluationQueue.KIND}/{_name(experiment.sweep)}/"
    for study in storage.get_all_studies():
        if study.study_name.startswith(start):
            home = study.study_name.rpartition("/")[2]
            trials = storage.get_all_trials(study._study_id, deepcopy=False)
            found |= {(home, str(trial.user_attrs.get("cell"))) for trial in trials if trial.value is not None}
    return found


def _spent(experiment: Experiment, arms: list[ArmStudy]) -> tuple[float, float]:
    """Seconds and estimated operations of the finished training runs."""
    seconds = operations = 0.0
    for arm in arms:
        for trial in (one for one in arm.known() if one.state == "finished"):
            try:
                recipe = arm.sweep.recipe(arm.setting, arm.arm, trial.parameters)
            except UserError:
                continue
            seconds += trial.facts.get("seconds") or 0.0
            operations += cost.training(recipe, experiment.nominal, arm.sweep.gammas)
    return (seconds, operations) if seconds else (0.0, 0.0)


def alive(reproduction: Reproduction, options: ReproduceOptions) -> list[Holder]:
    """The workers that run a trial of the reproduction now, on any machine."""
    if not has_studies(options.url):
        return []
    names = [_name(experiment.sweep) for experiment in reproduction.experiments]
    return recovery.alive(open_storage(options.url), lambda study: any(f"/{name}/" in study for name in names))


def _name(sweep: Sweep) -> str:
    """What the names of all studies of a sweep have in common."""
    return f"{sweep.recipe_name}/{sweep.name}-{sweep.identity()}"
