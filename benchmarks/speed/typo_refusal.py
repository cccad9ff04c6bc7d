"""Refusing a typo against importing torch: an error in a recipe is reported before anything heavy
is imported.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved

_CUDT = "from cudt.cli.main import main; main()"
_TYPO = ("train", "--recipe", "reviews-ut", "--set", "training.epoch=3")


def cpu_of_children() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_python(*arguments: str, cwd: Path) -> str:
    """Run Python in a process of its own and return its standard error."""
    # The folder of a run must not hide the package under test, which is found from here.
    path = str(Path(__file__).parents[2])
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {path!r}); {arguments[0]}",
        *arguments[1:],
    ]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False).stderr


def measure(setting: Setting) -> list[Outcome]:
    def refuse() -> None:
        error = run_python(_CUDT, *_TYPO, cwd=setting.folder)
        if "did you mean 'epochs'?" not in error:
            raise RuntimeError(error)

    def import_torch() -> None:
        run_python("import torch", cwd=setting.folder)

    return [compared(*interleaved(refuse, import_torch, clock=cpu_of_children), "CPU s/process")]


BENCH = Bench(
    name="typo-refusal",
    what="`cudt train --set training.epoch=3`, refused ÷ `import torch`",
    goal=0.33,
    higher_is_better=False,
    measure=measure,
)
