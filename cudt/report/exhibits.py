"""What is looked at rather than counted: pictures of test examples, and completions, of several runs side by side."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudt.report.collect import ReadRun

#: The page holds its pictures, and a page that is too large opens nowhere; what does not fit is in the folders.
_MOST_BYTES = 8_000_000
#: Of all that was saved, the page shows so many.
_MOST_SAMPLES, _MOST_ANSWERS = 3, 5
#: Of each objective, so many variants stand side by side.
_MOST_GROUPS = 2
#: Characters of an answer.
_LONGEST = 1500


class Pictures:
    """Pictures as a page holds them, as long as there is room."""

    def __init__(self) -> None:
        self._room = _MOST_BYTES
        self.left_out: list[Path] = []
        self._unread: list[str] = []

    def inline(self, picture: Path) -> str | None:
        """The picture as an address; None where there is no room any more, or no picture."""
        try:
            content = base64.b64encode(picture.read_bytes()).decode()
        except OSError as error:
            self._unread.append(f"{picture}: cannot be read ({error.strerror})")
            return None
        if len(content) > self._room:
            self.left_out.append(picture)
            return None
        self._room -= len(content)
        return f"data:image/{picture.suffix.removeprefix('.')};base64,{content}"

    def note(self) -> list[str]:
        """A line about what did not fit, and one for each that cannot be read."""
        if not self.left_out:
            return self._unread
        first, *others = self.left_out
        told = f"{1 + len(others)} pictures are" if others else "1 picture is"
        more = " …" if others else ""
        return [*self._unread, f"{told} not on this page, which would be too large: {first}{more}"]


def samples(runs: Sequence[ReadRun], pictures: Pictures) -> list[dict[str, Any]]:
    """For some of the saved test examples, the pictures of a run of the best groups; the same example side by side."""
    runs = _one_of_the_best_groups(runs, [run for run in runs if run.samples])
    names = list(dict.fromkeys(strip.name for run in runs for strip in run.samples))
    shown = []
    for name in names[:_MOST_SAMPLES]:
        strips = [(run, strip) for run in runs for strip in run.samples if strip.name == name]
        made = [_sample(run, strip, pictures) for run, strip in strips]
        shown.append({"name": name.removesuffix(".png"), "pictures": [one for one in made if one["strip"]]})
    return [one for one in shown if one["pictures"]]


def _one_of_the_best_groups(runs: Sequence[ReadRun], looked_at: Sequence[ReadRun]) -> list[ReadRun]:
    """Seeds look alike: of those to be looked at, the first of each group; of each objective the best few groups."""
    first = {run.group: run for run in reversed(looked_at)}
    losses: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        losses.setdefault(run.group, []).append(run.info.best.validation_loss)
    ranked = sorted(first.values(), key=lambda run: _mean(losses[run.group]))
    kept = {
        run.group
        for objective in {run.objective for run in ranked}
        for run in [one for one in ranked if one.objective == objective][:_MOST_GROUPS]
    }
    return [run for run in looked_at if run.group in kept and run is first[run.group]]


def _mean(losses: Sequence[float]) -> float:
    """Nothing that is not a number may come out as the best."""
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def _sample(run: ReadRun, strip: Path, pictures: Pictures) -> dict[str, Any]:
    moving = strip.with_suffix(".gif")
    return {
        "title": f"{run.objective}, seed {run.seed}, {run.run.path.name}",
        "strip": pictures.inline(strip),
        "moving": pictures.inline(moving) if moving.is_file() else None,
    }


def completions(runs: Sequence[ReadRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """Answers to the same instructions under the same noise, of a run of the best groups; and what is damaged."""
    found: dict[str, list[tuple[ReadRun, list[dict[str, str]]]]] = {}
    damaged = []
    for run in _one_of_the_best_groups(runs, [run for run in runs if _answered(run)]):
        for path in _answered(run):
            try:
                answers = json.loads(path.read_text(encoding="utf-8"))[:_MOST_ANSWERS]
                _ = [one["instruction"] + one["output"] + "" for one in answers]
            except (OSError, ValueError, KeyError, TypeError) as error:
                damaged.append(f"{path}: damaged ({type(error).__name__})")
                continue
            found.setdefault(path.stem, []).append((run, answers))
    return [{"name": name, "answers": _side_by_side(sides)} for name, sides in found.items()], damaged


def _answered(run: ReadRun) -> list[Path]:
    """The files of a run's completions, without what stands there once more, as AlpacaEval's annotators read it."""
    return [path for path in sorted((run.run.path / "completions").glob("*.json")) if "-against-" not in path.stem]


def _side_by_side(sides: Sequence[tuple[ReadRun, list[dict[str, str]]]]) -> list[dict[str, Any]]:
    instructions = dict.fromkeys(one["instruction"] for _, answers in sides for one in answers)
    return [
        {
            "instruction": instruction,
            "outputs": [
                {"objective": f"{run.objective}, {run.run.path.name}", "text": _shortened(one["output"])}
                for run, answers in sides
                for one in answers
                if one["instruction"] == instruction
            ],
        }
        for instruction in instructions
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
