"""The files in completions/ of a run: answers to instructions, in AlpacaEval's format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudt.runs import checksums
from cudt.utils.reading import ContentError, json_value

Completion = dict[str, str]
_KEYS = ("instruction", "output", "generator", "dataset")
#: The folder below that of a run's tables.
_FOLDER = "completions"


@dataclass(frozen=True)
class CompletionSet:
    """What the completions of a file depend on besides the run; its name says all of it."""

    instructions: str
    """The name of the instructions file, without its suffix."""
    gamma: float
    noise_seed: int
    max_new_tokens: int

    @property
    def name(self) -> str:
        """The name of the file, without its suffix."""
        return f"{self.instructions}-gamma{self.gamma:g}-seed{self.noise_seed}-tokens{self.max_new_tokens}"

    def path(self, results: Path) -> Path:
        """The file, given the folder of the run's tables."""
        return results / _FOLDER / f"{self.name}.json"


def read_completions(path: Path) -> list[Completion]:
    """The completions of a file in a run folder; a DamagedFileError if they are not as they were
    written.
    """
    return checksums.read_as(*_place(path), _parsed)


def write_completions(path: Path, completions: Sequence[Completion]) -> None:
    """Replace a file of completions, or of pairs of them."""
    text = json.dumps(completions, indent=1, ensure_ascii=False) + "\n"
    checksums.write_checked(*_place(path), text.encode())


def _place(path: Path) -> tuple[Path, str]:
    """The folder of a run's results, and the name of a file of completions in it."""
    return path.parent.parent, f"{path.parent.name}/{path.name}"


def _parsed(content: bytes) -> list[Completion]:
    done = json_value(content)
    if not isinstance(done, list):
        raise ContentError("not a list")
    for number, completion in enumerate(done, 1):
        texts = [completion.get(key) for key in _KEYS] if isinstance(completion, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ContentError(f"completion {number} does not have the texts {', '.join(_KEYS)}")
    return done
