"""Exhibits of the page: pictures of test examples and generated completions of several runs, side
by side.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudt.report.collect import ReadRun
from cudt.report.compare import group_scores
from cudt.report.names import labels
from cudt.runs import checksums
from cudt.runs.completions import read_completions
from cudt.utils.errors import DamagedFileError, UserError

#: Pictures are embedded in the page, and browsers fail to open a very large one; the rest stays in
#: the run folders.
_MOST_BYTES = 8_000_000
#: Test examples and completions shown of all that were saved.
_MOST_SAMPLES, _MOST_ANSWERS = 3, 5
#: Variants shown of each objective.
_MOST_GROUPS = 2
#: Characters shown of a completion.
_LONGEST = 1500


class Pictures:
    """Embeds pictures in the page until its budget of bytes is used up."""

    def __init__(self) -> None:
        self._room = _MOST_BYTES
        self.left_out: list[Path] = []
        self._unread: list[str] = []

    def inline(self, picture: Path, folder: Path | None = None) -> str | None:
        """The picture as a data URL; None if it does not fit any more or cannot be read.

        `folder` is the run folder of a picture that a run has.
        """
        try:
            name = "" if folder is None else picture.relative_to(folder).as_posix()
            read = picture.read_bytes() if folder is None else checksums.read_checked(folder, name)
            content = base64.b64encode(read).decode()
        except DamagedFileError as error:
            self._unread.append(str(error))
            return None
        except OSError as error:
            self._unread.append(f"{picture}: cannot be read ({error.strerror})")
            return None
        if len(content) > self._room:
            self.left_out.append(picture)
            return None
        self._room -= len(content)
        return f"data:image/{picture.suffix.removeprefix('.')};base64,{content}"

    def note(self) -> list[str]:
        """A warning about the pictures that did not fit, and one for each that cannot be read."""
        if not self.left_out:
            return self._unread
        first, *others = self.left_out
        count = f"{1 + len(others)} pictures are" if others else "1 picture is"
        more = " and others" if others else ""
        return [
            *self._unread,
            f"{count} not shown, since the page would be too large: {first}{more}",
        ]


def samples(runs: Sequence[ReadRun], pictures: Pictures) -> list[dict[str, Any]]:
    """Some of the saved test examples of one recipe, each with the pictures of one run of the best
    groups.
    """
    named = labels(runs)
    runs = _one_of_the_best_groups(runs, [run for run in runs if run.samples])
    names = list(dict.fromkeys(strip.name for run in runs for strip in run.samples))
    shown = []
    for name in names[:_MOST_SAMPLES]:
        strips = [(run, strip) for run in runs for strip in run.samples if strip.name == name]
        made = [_sample(named[run.group], run, strip, pictures) for run, strip in strips]
        shown.append(
            {"name": name.removesuffix(".png"), "pictures": [one for one in made if one["strip"]]}
        )
    return [one for one in shown if one["pictures"]]


def _one_of_the_best_groups(runs: Sequence[ReadRun], exhibited: Sequence[ReadRun]) -> list[ReadRun]:
    """The first exhibited run of the best few groups of each objective; seeds of a group look
    alike.
    """
    first = {run.group: run for run in reversed(exhibited)}
    scores = group_scores(runs)
    ranked = sorted(first.values(), key=lambda run: scores[run.group])
    kept = {
        run.group
        for objective in {run.objective for run in ranked}
        for run in [one for one in ranked if one.objective == objective][:_MOST_GROUPS]
    }
    return [run for run in exhibited if run.group in kept and run is first[run.group]]


def _sample(label: str, run: ReadRun, strip: Path, pictures: Pictures) -> dict[str, Any]:
    return {
        "title": f"{label}, seed {run.seed}",
        "strip": pictures.inline(strip, run.run.results),
    }


def completions(runs: Sequence[ReadRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """Completions of the same instructions under the same noise, of one run of the best groups; and
    warnings.
    """
    named = labels(runs)
    found: dict[str, list[tuple[str, list[dict[str, str]]]]] = {}
    damaged = []
    for run in _one_of_the_best_groups(runs, [run for run in runs if _answered(run)]):
        for path in _answered(run):
            try:
                answers = read_completions(path)[:_MOST_ANSWERS]
            except (OSError, UserError) as error:
                damaged.append(str(error))
                continue
            found.setdefault(path.stem, []).append(
                (f"{named[run.group]}, seed {run.seed}", answers)
            )
    return [
        {"name": name, "answers": _side_by_side(sides)} for name, sides in found.items()
    ], damaged


def _answered(run: ReadRun) -> list[Path]:
    """The files of a run's completions, without the copies in the format of AlpacaEval's
    annotators.
    """
    return [
        path
        for path in sorted((run.run.path / "completions").glob("*.json"))
        if "-against-" not in path.stem
    ]


def _side_by_side(sides: Sequence[tuple[str, list[dict[str, str]]]]) -> list[dict[str, Any]]:
    instructions = dict.fromkeys(one["instruction"] for _, answers in sides for one in answers)
    return [
        {
            "instruction": instruction,
            "outputs": [
                {"title": title, "text": _shortened(one["output"])}
                for title, answers in sides
                for one in answers
                if one["instruction"] == instruction
            ],
        }
        for instruction in instructions
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
