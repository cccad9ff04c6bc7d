"""Sweeps as their storage knows them: the definition, for workers that join, and whether cells may
still be started.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optuna.storages import BaseStorage

from cudt.sweep import definition, recovery
from cudt.sweep.definition import Sweep
from cudt.sweep.source import ArmSource
from cudt.sweep.storage import has_studies, open_storage, without_password
from cudt.sweep.study import ArmStudy, study_name
from cudt.utils.errors import UserError

#: The attributes of a sweep's first study: its search file and recipe, and how it is run at the
#: moment.
_DEFINITION, _FAIL_FAST, _CLOSED = "sweep", "fail_fast", "closed"


def open_studies(sweep: Sweep, storage: BaseStorage) -> list[ArmStudy]:
    """The study of each arm in each setting."""
    return [
        ArmStudy(sweep, setting, arm, storage)
        for setting in sweep.settings
        for arm in sweep.search.arms
    ]


def begin(
    sweep: Sweep, studies: Sequence[ArmStudy], *, fail_fast: bool, retry_failed: bool
) -> None:
    """Store the definition and enqueue what is missing; a sweep that was begun before is
    resumed.
    """
    first = studies[0].study
    first.set_user_attr(_DEFINITION, {"search": sweep.text(), "recipe": sweep.base_text()})
    # Whoever adds workers does not change how others run the sweep.
    first.set_user_attr(
        _FAIL_FAST, fail_fast or (bool(first.user_attrs.get(_FAIL_FAST)) and _is_running(studies))
    )
    first.set_user_attr(_CLOSED, False)
    for study in studies:
        study.drop_surplus()
        if retry_failed:
            study.retry_failed()
        study.top_up()


def _is_running(studies: Sequence[ArmStudy]) -> bool:
    names = {study.name for study in studies}
    return bool(recovery.alive(studies[0].storage, names.__contains__))


def is_closed(studies: Sequence[ArmStudy]) -> bool:
    """Whether no further cell may be started, because one has failed."""
    return bool(studies[0].study.user_attrs.get(_CLOSED))


def close_after_failure(studies: Sequence[ArmStudy]) -> None:
    """Start no further cell anywhere, if the sweep is to fail fast."""
    if studies[0].study.user_attrs.get(_FAIL_FAST):
        studies[0].study.set_user_attr(_CLOSED, True)


def find(url: str, name: str | None = None) -> Sweep:
    """The unfinished sweep of a storage; with several, the one whose name (or name-hash) is
    given.
    """
    where = without_password(url)
    storage = open_storage(url) if has_studies(url) else None
    sweeps = _sweeps(storage) if storage is not None else []
    if storage is None or not sweeps:
        raise UserError(
            f"{where}: no sweep has begun here; begin it with `cudt sweep --search … --storage "
            f"{where}`"
        )
    if name is not None:
        found = [sweep for sweep in sweeps if name in (sweep.name, _full_name(sweep))]
        if not found:
            raise UserError(f"{where}: no sweep is called '{name}'; there {_listed(sweeps)}")
    else:
        found = [
            sweep for sweep in sweeps if any(study.left for study in open_studies(sweep, storage))
        ]
        if not found:
            raise UserError(f"{where}: every sweep is finished ({_listed(sweeps)})")
    if len(found) > 1:
        raise UserError(f"{where}: choose one with --search; there {_listed(found)}")
    return found[0]


def load(storage: BaseStorage, study: str) -> Sweep:
    """The sweep whose first study has this name."""
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(study))
    return definition.from_texts(
        attributes[_DEFINITION]["search"], attributes[_DEFINITION]["recipe"]
    )


def first_study(sweep: Sweep) -> str:
    """The name of the study that has the sweep's definition."""
    return study_name(sweep, sweep.settings[0], next(iter(sweep.search.arms)))


def sources_of(
    studies: Sequence[ArmStudy],
    out: Path,
    device: str,
    data_root: Path | None,
    cell_function: str,
    trackers: tuple[str, ...] = (),
) -> list[ArmSource]:
    return [ArmSource(study, out, device, data_root, cell_function, trackers) for study in studies]


def _sweeps(storage: BaseStorage) -> list[Sweep]:
    texts = [
        study.user_attrs[_DEFINITION]
        for study in storage.get_all_studies()
        if _DEFINITION in study.user_attrs
    ]
    return [definition.from_texts(text["search"], text["recipe"]) for text in texts]


def _full_name(sweep: Sweep) -> str:
    return f"{sweep.name}-{sweep.identity()}"


def _listed(sweeps: Sequence[Sweep]) -> str:
    names = [f"{_full_name(sweep)} of {sweep.recipe_name}" for sweep in sweeps]
    return ("is " if len(names) == 1 else "are ") + ", ".join(names)
