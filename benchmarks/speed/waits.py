"""How often the CPU waits for the device, counted on the pretended accelerator of the tests.

Allowed are one wait per update and one per measured batch (at all levels together); none per layer and none per log.
DUST may wait once more per update and once per measurement: torch waits to know whether the eigenvalues of its
dictionaries converged. Copies to the device have to come from pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.speed.bench import Bench, Outcome, Setting

UPDATES = 2
LEVELS = (0.0, 0.5, 1.0)
#: Small, and in this process: what is counted does not depend on the size of a model.
SMALL = ("loading.workers=0", "training.batch_size=4", "training.log_every=1", "evaluation.batch_size=8")


def measure(setting: Setting) -> list[Outcome]:
    # Torch has to learn of the device before the first backward pass of the process.
    from tests.shadow.device import active

    with active():
        return [_counted(setting.folder, name, *make(setting.folder)) for name, make in _RECIPES.items()]


def _encoder(folder: Path) -> tuple[str, tuple[str, ...]]:
    from tests.pretrained import tiny_pretrained
    from tests.texts import write_recipe, write_reviews

    write_reviews(folder)
    return str(write_recipe(folder, tiny_pretrained(folder / "bert"))), ("task.limit={train: 8, validation: 16}",)


def _causal(folder: Path) -> tuple[str, tuple[str, ...]]:
    from tests.instructions import write_instructions, write_recipe
    from tests.pretrained import tiny_llama

    own = folder / "instructions"
    own.mkdir()
    write_instructions(own)
    return str(write_recipe(own, tiny_llama(own / "llama"))), (
        "task.limit={train: 8, validation: 8}",
        "readout.tokens=3",
    )


def _dust(folder: Path) -> tuple[str, tuple[str, ...]]:
    return "smoke-video", ("model.layers=6", "descent.warmup_epochs=0", "task.train=8")


def _unrolled(folder: Path) -> tuple[str, tuple[str, ...]]:
    return "smoke-text", ("model.layers=9", "task.train=16", "task.validation=16")


_RECIPES: dict[str, Callable[[Path], tuple[str, tuple[str, ...]]]] = {
    "encoder": _encoder,
    "causal with LoRA": _causal,
    "DUST": _dust,
    "UT": _unrolled,
}


def _counted(folder: Path, name: str, recipe_name: str, overrides: tuple[str, ...]) -> Outcome:
    """Waits of some updates with their logs, and of a validation at several levels, against those allowed."""
    from rich.console import Console

    from cudt.config import recipe
    from cudt.models.assemble import assemble
    from cudt.models.layer_losses import measure_batches
    from cudt.noise.source import NoiseSource
    from cudt.runs.find import run_for
    from cudt.training.display import PlainDisplay
    from cudt.training.trainer import Trainer
    from cudt.utils.device import accelerator_for
    from tests.shadow.device import watch

    loaded = recipe.load(recipe_name, (*SMALL, *overrides))
    accelerator = accelerator_for("shadow", "fp32")
    problem = assemble(loaded, Path(recipe_name).parent, accelerator.device)
    trainer = Trainer(run_for(loaded, folder), problem, accelerator, PlainDisplay(Console(quiet=True)))
    trainer.state.sigma_x = 1.0
    with watch() as training:
        for micro_batches, _ in zip(trainer._remaining_updates(), range(UPDATES), strict=False):
            f, grad_norm = trainer._update(micro_batches)
            trainer.state.step += 1
            trainer._log_update(f, grad_norm)
    assert trainer.state.step == UPDATES
    with watch() as measuring:
        source = NoiseSource("gaussian", 1.0, 0)
        batches = len(list(measure_batches(trainer.layerwise, trainer._split("validation"), source, LEVELS)))
    waits, copies = (len(training.waits), len(measuring.waits)), len(training.copies) + len(measuring.copies)
    note = (
        f"{trainer.model.n_layers} layers; {waits[0]} in {UPDATES} updates with their logs, {waits[1]} in {batches} "
        f"batches at {len(LEVELS)} levels, {copies} copies that block"
    )
    allowed = UPDATES + batches + (UPDATES + 1 if name == "DUST" else 0)
    return Outcome(sum(waits) + copies, allowed, "waits", note=note, name=f"waits, {name}")


BENCH = Bench(
    name="waits",
    what="waits for the device, counted ÷ allowed",
    goal=1.0,
    higher_is_better=False,
    measure=measure,
)
