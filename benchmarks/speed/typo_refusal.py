"""Refusing a typo against importing torch: an error in a recipe is reported before anything heavy is imported."""

from __future__ import annotations

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved
from benchmarks.speed.processes import cpu_of_children, run_python

_CUDT = "from cudt.cli.main import main; main()"


def measure(setting: Setting) -> list[Outcome]:
    def refuse() -> None:
        error = run_python(
            _CUDT, "train", "--recipe", "reviews-ut", "--set", "training.epoch=3", cwd=setting.folder, returns=2
        )
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
