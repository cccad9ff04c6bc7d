"""sweep.json: what a sweep is, how far it is, and the command that resumes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cudt.utils.errors import DamagedFileError, UserError
from cudt.utils.files import write_text
from cudt.utils.reading import ContentError, json_object

FILE = "sweep.json"


class ArmInfo(BaseModel):
    """One arm of a sweep."""

    sampler: str
    budget: int
    """Runs in each setting."""
    pruner: str | None = None
    """What ends runs early."""


class SweepInfo(BaseModel):
    """The contents of sweep.json; keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True)

    cudt: str = ""
    """The version that wrote it."""
    name: str
    recipe: str
    reproduces: str = ""
    measure: Literal["metric", "loss", "grid"]
    gammas: list[float] | None = None
    """The noise levels that the score `grid` averages over."""
    direction: Literal["maximize", "minimize"]
    arms: dict[str, ArmInfo]
    settings: list[str]
    """The recipe keys that are compared: every arm has its whole budget at each combination of
    their values."""
    unequal_budgets: str | None = None
    """Why the arms have different budgets."""
    keys: list[str]
    """The recipe keys that differ between trials: settings first, then searched ones."""
    log_keys: list[str]
    """Keys that are searched on a logarithmic scale."""
    finished: int
    failed: int
    pruned: int = 0
    """Runs that were ended early."""
    left: int
    """Cells that are waiting or running."""
    command: str
    """The command that resumes the sweep."""


def write_info(folder: Path, info: SweepInfo) -> None:
    text = json.dumps(info.model_dump(mode="json"), indent=2, ensure_ascii=False)
    write_text(folder / FILE, f"{text}\n")


def read_info(folder: Path) -> SweepInfo:
    """The sweep.json of a sweep's folder; a damaged file is an error."""
    try:
        values = json_object((folder / FILE).read_bytes())
        return SweepInfo.model_validate_json(json.dumps(values))
    except ContentError as error:
        advice = "restore it, or repeat the command of the sweep"
        raise DamagedFileError(folder / FILE, str(error), advice) from None
    except OSError as error:
        raise UserError(f"{folder / FILE}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        reason = f"{key}: {first['msg']}" if key else first["msg"]
        advice = "restore it, or repeat the command of the sweep"
        raise DamagedFileError(folder / FILE, reason, advice) from None
