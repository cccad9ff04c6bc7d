"""A reproduction as its storage knows it: the definition, for workers that join, the order of experiments, and homes.

They are attributes of a study of their own, `cudt/reproduce/NAME`, which has no trials.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.storages import BaseStorage
from pydantic import ValidationError

from cudt.config import strict_yaml
from cudt.reproduce.scale import Experiment, Reproduction, Scale
from cudt.runs.options import RunOptions
from cudt.sweep import definition
from cudt.sweep.definition import Sweep
from cudt.sweep.lease import home_of
from cudt.sweep.storage import has_studies, open_storage, own_storage, without_password
from cudt.sweep.study import study_name
from cudt.utils.errors import UserError

_PREFIX = "cudt/reproduce/"
#: Attributes: the scale's file, the search and recipe of each experiment, their order, and each home.
_SCALE, _EXPERIMENT, _ORDER, _HOME = "scale", "experiment ", "order", "home "


@dataclass(frozen=True)
class ReproduceOptions(RunOptions):
    """The options of `cudt reproduce`."""

    storage: str | None = None
    """The URL of a database; by default, a SQLite file in the folder of the results."""
    join: bool = False
    """Take part in a reproduction as it is, without resuming it."""

    @property
    def url(self) -> str:
        return self.storage or own_storage(self.out)


@dataclass(frozen=True)
class Home:
    """A folder of runs that takes part, on one host or on all that share it."""

    id: str
    host: str
    folder: str


@dataclass(frozen=True)
class Turn:
    """An experiment's turn in the queue."""

    experiment: int
    """Its number in the scale's file."""
    seconds: float
    """The planned cost of one of its trials."""


def root_study(reproduction: Reproduction) -> str:
    """The name of the study that has the definition."""
    return f"{_PREFIX}{reproduction.name}"


def begin(reproduction: Reproduction, order: Sequence[Turn], storage: BaseStorage) -> None:
    """Store the definition and the order of the experiments, replacing earlier ones."""
    study = optuna.create_study(storage=storage, study_name=root_study(reproduction), load_if_exists=True)
    study.set_user_attr(_SCALE, strict_yaml.dump(reproduction.scale.model_dump(mode="json", exclude_unset=True)))
    for number, experiment in enumerate(reproduction.experiments):
        # One by one, because databases limit the length of an attribute.
        texts = {"search": experiment.sweep.text(), "recipe": experiment.sweep.base_text()}
        study.set_user_attr(f"{_EXPERIMENT}{number}", texts)
    study.set_user_attr(_ORDER, [[turn.experiment, turn.seconds] for turn in order])


def load(storage: BaseStorage, study: str) -> Reproduction:
    """The reproduction whose root study has this name."""
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(study))
    scale = Scale.model_validate(strict_yaml.parse_mapping(attributes[_SCALE], "scale"))
    experiments = []
    for number, listed in enumerate(scale.experiments):
        texts = attributes[f"{_EXPERIMENT}{number}"]
        sweep = definition.from_texts(texts["search"], texts["recipe"])
        experiments.append(Experiment(listed, sweep, scale.costs[sweep.recipe_name]))
    return Reproduction(study.removeprefix(_PREFIX), scale, experiments)


def order_of(storage: BaseStorage, reproduction: Reproduction) -> list[Turn]:
    """The order in which workers take the experiments, the cheapest first."""
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(root_study(reproduction)))
    return [Turn(int(number), float(seconds)) for number, seconds in attributes[_ORDER]]


def find(url: str, name: str | None) -> Reproduction:
    """The reproduction of a storage; with several, the one whose scale is named."""
    where = without_password(url)
    storage = open_storage(url) if has_studies(url) else None
    studies = storage.get_all_studies() if storage is not None else []
    names = [study.study_name for study in studies if _SCALE in study.user_attrs]
    found = [study for study in names if name in (None, study.removeprefix(_PREFIX))]
    known = ", ".join(study.removeprefix(_PREFIX) for study in names)
    if storage is None or not names:
        raise UserError(f"{where}: no reproduction has begun here; begin it with `cudt reproduce --scale …`")
    if len(found) != 1:
        raise UserError(f"{where}: choose one with --scale; there are {known}")
    try:
        return load(storage, found[0])
    except (ValidationError, KeyError):
        raise UserError(
            f"{where}: {known} was begun by another version of cudt, which this one cannot read; use that version"
        ) from None


# ---------------------------------------------------------------- homes


def enter(storage: BaseStorage, reproduction: Reproduction, out: Path) -> Home:
    """Record the folder of this process's runs as one that takes part."""
    home = Home(home_of(out), socket.gethostname(), str(out.resolve()))
    study = storage.get_study_id_from_name(root_study(reproduction))
    storage.set_study_user_attr(study, f"{_HOME}{home.id}", [home.host, home.folder])
    return home


def homes(storage: BaseStorage, reproduction: Reproduction) -> list[Home]:
    """All folders that have taken part, in the order of hosts and names."""
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(root_study(reproduction)))
    found = {key.removeprefix(_HOME): value for key, value in attributes.items() if key.startswith(_HOME)}
    return sorted((Home(home, *where) for home, where in found.items()), key=lambda home: (home.host, home.folder))


# ---------------------------------------------------------------- earlier versions


def adopt_trials(sweep: Sweep, out: Path, storage: BaseStorage) -> None:
    """Copy the trials of a sweep that an earlier version kept in the sweep's own folder."""
    own = own_storage(sweep.folder(out))
    names = [study_name(sweep, setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    # Commands that begin at the same time must not enqueue cells before all trials are copied.
    with FileLock(out / ".adopt.lock"):
        copied = set(optuna.get_all_study_names(storage))
        if copied.issuperset(names) or not has_studies(own):
            return
        old = open_storage(own)
        for name in set(optuna.get_all_study_names(old)) - copied:
            optuna.copy_study(from_study_name=name, from_storage=old, to_storage=storage)
