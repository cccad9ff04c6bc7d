"""How far attention keeps the descent that theory promises of g₁, and the ReLU step that of g₂.

    python -m benchmarks.attention_energy [RUN …]

Prints, for random tokens at several scales and for every layer of trained UT runs, the share of sequences on which
a step raises an energy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cudt.models.assemble import assemble
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.models.unrolled_steps import (
    attend,
    attention_descent_step,
    attention_energy,
    largest_descending_step,
    pair_energy,
    relu_energy,
)
from cudt.runs.find import open_run
from cudt.training.checkpoint import load_weights


def share_raised(before: Tensor, after: Tensor) -> str:
    """Share of sequences whose energy rose, by more than rounding."""
    return f"{(after - before > 1e-9 * before.abs().clamp_min(1)).double().mean().item():.3f}"


def attention_row(x: Tensor, w1: Tensor, mask: Tensor) -> list[str]:
    """g₁ under the proof's step, and the pair energy and g₁ under weighted and unweighted attention."""
    y = x @ w1.T
    row = [share_raised(attention_energy(y, mask), attention_energy(attention_descent_step(y, mask), mask))]
    for weighted in (True, False):
        after = attend(x, w1, mask, weighted=weighted) @ w1.T
        row += [share_raised(energy(y, mask), energy(after, mask)) for energy in (pair_energy, attention_energy)]
    return row


STEPS = ["g₁, proof's step", "pairs, weighted", "g₁, weighted", "pairs, unweighted", "g₁, unweighted"]


def random_tokens() -> Table:
    """Gaussian tokens, 20 of width 32, at several scales."""
    table = Table("scale", *STEPS, title="random tokens: share of sequences whose energy rose")
    mask = torch.ones(500, 20, dtype=torch.bool)
    for scale in (0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0):
        x = scale * torch.randn(500, 20, 32, dtype=torch.double, generator=torch.Generator().manual_seed(0))
        table.add_row(f"{scale:g}", *attention_row(x, torch.eye(32, dtype=torch.double), mask))
    return table


@torch.no_grad()
def trained(path: Path) -> Table:
    """Every layer of a trained UT on its clean test data."""
    run = open_run(path)
    experiment = assemble(run.recipe, None, torch.device("cpu"))
    experiment.layerwise.load_learned_weights(load_weights(run))
    model = experiment.layerwise.double().model
    assert isinstance(model, UnrolledTransformer), f"{path} is not a UT"
    table = Table("layer", *STEPS, "g₂, ReLU step", "η / bound", title=f"{run.recipe.name} {path.name}")
    batch = experiment.task.collate(experiment.task.examples("test"))
    signal, mask = model.signal(batch)
    x = signal + model.positions.weight[: signal.shape[1]]
    for layer, state in enumerate(model.layer_states(signal, batch)):
        w1, w2 = model.layer_weights(layer)
        z = attend(x, w1, mask)
        relu = share_raised(relu_energy(z, w2, mask), relu_energy(state, w2, mask))
        bound = model.layer.step_size / largest_descending_step(w2)
        table.add_row(str(layer + 1), *attention_row(x, w1, mask), relu, f"{bound:.2f}")
        x = state
    return table


if __name__ == "__main__":
    console = Console(width=140)
    console.print(random_tokens())
    for argument in sys.argv[1:]:
        console.print(trained(Path(argument)))
