"""A reproduction as its storage knows it, for machines that join: attributes of a study of its own,
`cudt/reproduce/NAME`, which has no trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.storages import BaseStorage

from cudt.config import yaml
from cudt.reproduce.scale import Experiment, Reproduction, Scale
from cudt.sweep import definition
from cudt.sweep.storage import existing, own_storage, without_password
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError

_PREFIX = "cudt/reproduce/"
#: Attributes: the scale's file, and the search and recipe of each experiment.
_SCALE, _EXPERIMENT = "scale", "experiment "


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of `cudt reproduce`."""

    out: Path
    """The folder of the run folders."""
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    """Runs that are trained or evaluated at the same time, each in its own process."""
    retry_failed: bool = False
    storage: str | None = None
    """The URL of a database; by default, a SQLite file in the folder of the results."""
    join: bool = False
    """Take part in a reproduction as it is, without resuming it."""

    @property
    def url(self) -> str:
        return self.storage or own_storage(self.out)


def root_study(reproduction: Reproduction) -> str:
    """The name of the study that has the definition."""
    return f"{_PREFIX}{reproduction.name}"


def begin(reproduction: Reproduction, storage: BaseStorage) -> None:
    """Store the definition, replacing an earlier one."""
    study = optuna.create_study(
        storage=storage, study_name=root_study(reproduction), load_if_exists=True
    )
    study.set_user_attr(
        _SCALE, yaml.dump(reproduction.scale.model_dump(mode="json", exclude_unset=True))
    )
    for number, experiment in enumerate(reproduction.experiments):
        # One by one, because databases limit the length of an attribute.
        study.set_user_attr(f"{_EXPERIMENT}{number}", experiment.sweep.texts())


def load(storage: BaseStorage, study: str) -> Reproduction:
    """The reproduction whose root study has this name."""
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(study))
    scale = Scale.model_validate(yaml.parse_mapping(attributes[_SCALE], "scale"))
    experiments = []
    for number, listed in enumerate(scale.experiments):
        texts = attributes[f"{_EXPERIMENT}{number}"]
        experiments.append(Experiment(listed, definition.from_texts(texts)))
    return Reproduction(study.removeprefix(_PREFIX), scale, experiments)


def find(url: str, name: str | None) -> Reproduction:
    """The reproduction of a storage; with several, the one whose scale is named."""
    where = without_password(url)
    storage = existing(url)
    studies = storage.get_all_studies() if storage is not None else []
    names = [study.study_name for study in studies if _SCALE in study.user_attrs]
    found = [study for study in names if name in (None, study.removeprefix(_PREFIX))]
    if storage is None or not names:
        raise UserError(
            f"{where}: no reproduction has begun here; begin it with `cudt reproduce --scale …`"
        )
    if len(found) != 1:
        known = ", ".join(study.removeprefix(_PREFIX) for study in names)
        raise UserError(f"{where}: choose one with --scale; there are {known}")
    return load(storage, found[0])
