"""`cudt train` on the smallest recipe up to its first update, against the imports that such an update needs."""

from __future__ import annotations

import shutil

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved
from benchmarks.speed.processes import cpu_of_children, run_python

#: The command itself; its process ends after two optimizer steps: that of the weights and that of λ. The hook is set
#: where torch is imported anyway, because the order of imports changes their time.
_OURS = """
import os
from cudt.cli import main, train
def watched(*given, train_all=train.train_all):
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(end_after_two)
    return train_all(*given)
def end_after_two(*given, steps=[]):
    steps.append(given)
    if len(steps) == 2:
        os._exit(0)
train.train_all = watched
main.main()
raise SystemExit("no update was made")
"""
#: The packages that the command line, the recipe and an update need. Adam's first step imports torch's compiler, which
#: takes as long as torch itself.
_PEER = """
import os
import accelerate, cooper, numpy, pydantic, rich.console, typer, yaml
import torch
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()
os._exit(0)
"""


def measure(setting: Setting) -> list[Outcome]:
    out = setting.folder / "out"

    def update() -> None:
        shutil.rmtree(out, ignore_errors=True)
        run_python(f"exec({_OURS!r})", "train", "--recipe", "smoke-text", "--out", str(out), cwd=setting.folder)

    def imports() -> None:
        run_python(f"exec({_PEER!r})", cwd=setting.folder)

    return [compared(*interleaved(update, imports, rounds=4, clock=cpu_of_children), "CPU s/process", limit=1.0)]


BENCH = Bench(
    name="first-update",
    what="`cudt train` on the smallest recipe up to its first update ÷ the imports that it needs",
    goal=1.3,
    higher_is_better=False,
    measure=measure,
)
