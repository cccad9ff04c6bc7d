"""How far attention keeps the descent that theory promises of g₁, and the ReLU step that of g₂.

    python -m benchmarks.attention_energy [RUN …]

Prints, for random tokens at several scales and for every layer of trained UT runs, the share of sequences on which
a step raises an energy, with the mean change relative to the energy's size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor

from cudt import runs
from cudt.experiment import assemble
from cudt.models import unrolled
from cudt.models.unrolled import UnrolledTransformer, attend, attention_descent_step, attention_energy, pair_energy

Energy = Callable[[Tensor, Tensor], Tensor]


def shares(before: Tensor, after: Tensor) -> list[str]:
    """Share of sequences whose energy rose, and the median relative change."""
    change = after - before
    tolerance = 1e-5 * before.abs().clamp_min(1e-9)
    relative = (change / before.abs().clamp_min(1e-9)).median().item()
    return [f"{(change > tolerance).double().mean().item():.3f}", f"{relative:+.3f}"]


def attention_row(x: Tensor, w1: Tensor, mask: Tensor) -> list[str]:
    """g₁ under the proof's step, and the pair energy and g₁ under weighted and unweighted attention."""
    y = x @ w1.T
    row = shares(attention_energy(y, mask), attention_energy(attention_descent_step(y, mask), mask))
    for weighted in (True, False):
        after = attend(x, w1, mask, weighted=weighted) @ w1.T
        row += shares(pair_energy(y, mask), pair_energy(after, mask))
        row += shares(attention_energy(y, mask), attention_energy(after, mask))
    return row


def columns(table: Table, names: list[str]) -> None:
    for name in names:
        table.add_column(f"{name}: rose", justify="right")
        table.add_column("change", justify="right")


STEPS = ["g₁, proof's step", "pairs, weighted", "g₁, weighted", "pairs, unweighted", "g₁, unweighted"]


def random_tokens() -> Table:
    """Gaussian tokens, 20 of width 32, at several scales."""
    table = Table(title="random tokens")
    table.add_column("scale")
    columns(table, STEPS)
    mask = torch.ones(500, 20, dtype=torch.bool)
    for scale in (0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0):
        x = scale * torch.randn(500, 20, 32, dtype=torch.double, generator=torch.Generator().manual_seed(0))
        table.add_row(f"{scale:g}", *attention_row(x, torch.eye(32, dtype=torch.double), mask))
    return table


@torch.no_grad()
def trained(path: Path) -> Table:
    """Every layer of a trained UT on its clean test data."""
    run = runs.open_run(path)
    experiment = assemble(run.recipe, None, torch.device("cpu"))
    experiment.layerwise.load_state_dict(load_file(run.best_weights))
    model = experiment.layerwise.double().model
    assert isinstance(model, UnrolledTransformer), f"{path} is not a UT"
    table = Table(title=f"{run.recipe.name} {path.name}")
    table.add_column("layer")
    columns(table, [*STEPS, "g₂, ReLU step"])
    table.add_column("largest η")
    batch = experiment.task.collate(experiment.task.examples("test"))
    signal, mask = model.signal(batch)
    x = signal + model.positions.weight[: signal.shape[1]]
    for layer, state in enumerate(model.layer_states(signal, batch)):
        w1, w2 = model.layer_weights(layer)
        z = attend(x, w1, mask)
        # The first layer's input may be negative, where g₂ is infinite and any step descends.
        relu = shares(unrolled.relu_energy(z.clamp_min(0), w2, mask), unrolled.relu_energy(state, w2, mask))
        bound = unrolled.largest_descending_step(w2)
        table.add_row(str(layer + 1), *attention_row(x, w1, mask), *relu, f"{bound:.2f}")
        x = state
    return table


if __name__ == "__main__":
    console = Console(width=200)
    console.print(random_tokens())
    for argument in sys.argv[1:]:
        console.print(trained(Path(argument)))
