"""What ERM reaches on validation data: the loss that `alpha: {target_loss: auto}` stands for.

It is measured once for a recipe and its settings, and kept in `<out>/<recipe>/.target-<hash>.json`, so that all seeds
and processes train with the same α. Each run also records it, so that a resumed run does not depend on that file. The
file is hidden because everything else in that folder is a run, and `*` stands for all of them.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from accelerate import Accelerator
from filelock import FileLock
from pydantic import ValidationError

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Descent, TargetLoss
from cudt.method.objectives.base import objective_class
from cudt.runs.find import open_run
from cudt.runs.info import TargetInfo
from cudt.runs.run import Run
from cudt.utils import processes
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.files import write_text
from cudt.utils.reading import ContentError, sealed, unsealed

#: The share of the recipe's epochs that a pilot run trains, rounded up.
PILOT_SHARE = 0.25
#: How the source of a pilot's target begins.
_PILOT = "a pilot run of ERM"

TrainPilot = Callable[[NamedRecipe, Path], Run]
Announce = Callable[[str], None]


def resolve(
    run: Run, out: Path, accelerator: Accelerator, train: TrainPilot, announce: Announce | None
) -> TargetInfo | None:
    """The target of a run with `target_loss: auto`: recorded, or what ERM reaches; None for runs that need none.

    All processes call it together. If there is no finished ERM run, `announce` receives a line that says so, and
    `train` trains a pilot in a folder.
    """
    if not is_needed(run.recipe):
        return None
    if (recorded := processes.from_main(run.info().target)) is not None:
        return recorded
    twin, own = _erm_twin(run.recipe), run.recipe.settings.descent.reference
    folder = out / run.recipe.name
    key = f"target-{twin.identity(without_seed=True)}"
    file = folder / f".{key}.json"
    folder.mkdir(parents=True, exist_ok=True)
    # Of several runs that start at the same time, the first one measures.
    with FileLock(folder / f".{key}.lock") if accelerator.is_main_process else nullcontext():
        with processes.agreed():
            known = _known(run.recipe, out, file, announce) if accelerator.is_main_process else None
        target = processes.from_main(known)
        if target is None:
            if announce is not None and accelerator.is_main_process:
                announce(f"target_loss: auto: no ERM run of {run.recipe.name} has these settings; training a pilot")
            target, reference = _of_pilot(twin, folder / f".pilot-{key}", accelerator, train)
            if target.loss >= (reference if own == "auto" else own):
                # No α leads to it, and the run is refused; the next attempt may find ERM runs.
                return target
        if accelerator.is_main_process:
            write_text(file, sealed(target.model_dump()) + "\n")
    return target


def _known(recipe: NamedRecipe, out: Path, file: Path, announce: Announce | None) -> TargetInfo | None:
    """The target that an earlier run measured, or what the finished ERM runs reach."""
    kept, reached = _read(file), of_finished_runs(recipe, out)
    if announce is not None and kept is not None and reached is not None and kept.source.startswith(_PILOT):
        announce(
            f"target_loss: auto: {kept.loss:.4g} is from {kept.source}, and {reached.source}, reach {reached.loss:.4g};"
            f" to use that, delete {file} and the runs that were trained with the pilot's"
        )
    return kept or reached


def erm_first(recipes: Sequence[NamedRecipe]) -> list[NamedRecipe]:
    """The order to train some recipes in: as given, but ERM first if one needs to know what ERM reaches."""
    if not any(is_needed(recipe) for recipe in recipes):
        return [*recipes]
    return sorted(recipes, key=lambda recipe: recipe.settings.objective != "erm")


def of_finished_runs(recipe: NamedRecipe, out: Path) -> TargetInfo | None:
    """The mean validation loss of the finished ERM runs of a recipe, whatever their seeds and their constraints."""
    wanted = _erm_twin(recipe).identity(without_seed=True)
    losses = {}
    for path in sorted((out / recipe.name).glob("erm-*")):
        try:
            run = open_run(path)
            if run.info().status == "finished" and _erm_twin(run.recipe).identity(without_seed=True) == wanted:
                # Runs of one seed that differ in their constraints alone are the same training.
                losses[run.recipe.settings.seed] = run.finished_info().verdicts[-1].loss
        except UserError as error:
            warnings.warn(f"target_loss: auto: this ERM run is left out: {error}", DataWarning, stacklevel=2)
    if not losses:
        return None
    seeds = ", ".join(map(str, sorted(losses)))
    source = f"finished ERM runs of {recipe.name}, seed{'s' if len(losses) > 1 else ''} {seeds}"
    return TargetInfo(loss=sum(losses.values()) / len(losses), source=source)


def is_needed(recipe: NamedRecipe) -> bool:
    """Whether a run has to know what ERM reaches: it is constrained, with `target_loss: auto`."""
    alpha = recipe.settings.descent.alpha
    is_auto = isinstance(alpha, TargetLoss) and alpha.target_loss == "auto"
    return is_auto and objective_class(recipe.settings.objective).is_constrained


def _erm_twin(recipe: NamedRecipe) -> NamedRecipe:
    """The recipe's ERM run. Of the constraints' settings only the log form affects it."""
    descent = Descent(form="log") if recipe.settings.descent.form == "log" else Descent()
    changes = {"objective": "erm", "descent": descent}
    return dataclasses.replace(recipe, settings=recipe.settings.model_copy(update=changes))


def _of_pilot(twin: NamedRecipe, folder: Path, accelerator: Accelerator, train: TrainPilot) -> tuple[TargetInfo, float]:
    """What ERM reaches in its first epochs, and f_0; always with seed 0, so that every run that asks gets the same."""
    epochs = math.ceil(PILOT_SHARE * twin.settings.training.epochs)
    training = twin.settings.training.model_copy(update={"epochs": epochs})
    settings = twin.settings.model_copy(update={"training": training, "seed": 0})
    pilot = train(dataclasses.replace(twin, settings=settings), folder)
    info = pilot.finished_info()
    processes.wait()
    if accelerator.is_main_process:
        shutil.rmtree(folder)
    source = f"{_PILOT}, {epochs} epoch{'s' if epochs > 1 else ''}, seed 0"
    return TargetInfo(loss=info.verdicts[-1].loss, source=source), info.reference


def _read(file: Path) -> TargetInfo | None:
    """The target that an earlier run measured."""
    advice = "delete it, and the target is measured again"
    try:
        return TargetInfo.model_validate(unsealed(file.read_bytes()))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DamagedFileError(file, str(error.errors()[0]["msg"]), advice) from None
    except ContentError as error:
        raise DamagedFileError(file, str(error), advice) from None
