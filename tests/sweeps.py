"""Search files on the embedded reviews, and cells that replace training."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from cudt.config import yaml
from cudt.sweep import search as searches
from cudt.sweep.search import Sweep
from cudt.sweep.studies import ArmStudy, open_storage, own_storage, studies_of
from cudt.sweep.worker import SweepOptions
from cudt.utils.errors import TrainingPrunedError, UserError
from tests.conftest import TINY

#: The `--set` options of TINY as a search file's `fixed`.
FIXED = {key: yaml.parse(text, key) for key, _, text in (one.partition("=") for one in TINY)}
ALPHAS: dict[str, Any] = {"descent.alpha": [0.1, 0.2, 0.3]}
ALPHA: dict[str, Any] = {"descent.alpha": {"low": 0.0, "high": 0.5}}
ERM = {"objective": "erm"}


def grid(searched: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sampler": "grid", "search": searched, **more}


def drawn(sampler: str, budget: int, searched: Any = None, **more: Any) -> dict[str, Any]:
    return {"sampler": sampler, "budget": budget, "search": searched or ALPHA, **more}


def seeds(budget: int, **more: Any) -> dict[str, Any]:
    return {"sampler": "seeds", "budget": budget, **more}


def write_search(folder: Path, name: str = "mine", **changes: Any) -> Path:
    """A valid search file, with some top-level keys changed; None removes a key."""
    values = {
        "recipe": "reviews-ut",
        "score": {"measure": "metric", "direction": "maximize"},
        "fixed": FIXED,
        "arms": {"constrained": grid(ALPHAS)},
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.dump({key: one for key, one in values.items() if one is not None}))
    return path


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    return searches.load(str(write_search(folder, **changes)))


def begun(sweep: Sweep, out: Path, url: str | None = None) -> tuple[list[ArmStudy], SweepOptions]:
    """The studies of a sweep with every cell enqueued, and the options of its workers."""
    sweep.folder(out).mkdir(parents=True, exist_ok=True)
    url = url or own_storage(sweep.folder(out))
    studies = studies_of(sweep, open_storage(url))
    for study in studies:
        study.enqueue()
    return studies, SweepOptions(out, "cpu", storage=url)


def note(out: Path, line: str) -> None:
    """A line is written at once, so that several processes can."""
    with (out / "notes").open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def notes(out: Path) -> list[str]:
    return (out / "notes").read_text().splitlines() if (out / "notes").is_file() else []


def on_the_hill(recipe, arm, options, referee):
    """The score is a smooth hill over α, highest at 0.23; seeds are told apart."""
    settings = recipe.settings
    alpha: Any = settings.descent.alpha
    note(options.out, f"{settings.objective} {alpha:.6g} {settings.seed}")
    score = 0.9 - 4 * (alpha - 0.23) ** 2 - settings.seed / 100
    return score, {"updates": 6, "feasible": True, "violated": 0}


def slowly(recipe, arm, options, referee):
    """The same after the number of seconds in the file `pace`."""
    note(options.out, "begins")
    time.sleep(float((options.out / "pace").read_text()))
    return on_the_hill(recipe, arm, options, referee)


def fails_at_two_tenths(recipe, arm, options, referee):
    if recipe.settings.descent.alpha == 0.2 and not (options.out / "mended").exists():
        raise UserError("0.2 is not allowed")
    return on_the_hill(recipe, arm, options, referee)


def diverges_at_two_tenths(recipe, arm, options, referee):
    """NaN at α = 0.2, and constraints that only α = 0.1 meets."""
    score, facts = on_the_hill(recipe, arm, options, referee)
    alpha = recipe.settings.descent.alpha
    score = math.nan if alpha == 0.2 else score
    return score, {**facts, "feasible": alpha == 0.1, "violated": int(alpha != 0.1)}


#: By α, the validation metric after each epoch; the last one is the score.
CURVES = {0.1: [0.5, 0.6, 0.7], 0.2: [0.4, 0.5, 0.6], 0.3: [0.1, 0.2, 0.99], 0.4: [0.6, 0.7, 0.8]}


def curved(recipe, arm, options, referee):
    """Follows its curve, unless the pruner ends it."""
    curve = CURVES[recipe.settings.descent.alpha]
    for epoch in range(1, len(curve) + 1):
        so_far = dict(enumerate(curve[:epoch], 1))
        if referee.is_behind(so_far) and epoch < len(curve):
            raise TrainingPrunedError(f"after epoch {epoch}")
    return curve[-1], {"updates": 3, "violated": 0}
