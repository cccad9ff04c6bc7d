"""How far the layers of DUST descend on the energy that they unroll.

    python -m benchmarks.dust_energy DATA_ROOT RUN …

Prints, for every layer of trained DUST runs on eight clean test windows, the share of tokens whose LISTA loss the LISTA
step raises, and the share of sequences whose energy the attention, and the whole layer, raises.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.attention_energy import share_raised
from cudt.models.assemble import assemble
from cudt.models.dust_network import Dust, dust_energy, lista_loss, lista_step, squared_norm
from cudt.models.patches import to_patches
from cudt.models.unrolled_steps import attend
from cudt.runs.find import open_run
from cudt.training.checkpoint import load_weights


@torch.no_grad()
def trained(path: Path, data_root: Path) -> Table:
    """Every layer of a trained DUST, at the codes that it really gets."""
    run = open_run(path)
    experiment = assemble(run.recipe, data_root, torch.device("cpu"))
    experiment.layerwise.load_learned_weights(load_weights(run))
    model = experiment.layerwise.double().model
    assert isinstance(model, Dust), f"{path} is not a DUST"
    steps = ["LISTA loss, LISTA step", "energy, attention", "energy, layer", "‖D‖²"]
    table = Table("layer", *steps, title=f"{run.recipe.name} {path.name}")
    batch = experiment.task.collate(experiment.task.examples("test")[:8])
    x = to_patches(model.signal(batch)[0].double(), model.patch)
    h = x.new_zeros(*x.shape[:-1], model.dictionary(0).shape[1])
    for layer in range(model.n_layers):
        dictionary = model.dictionary(layer)
        c = squared_norm(dictionary)
        z = model.layer.correlation * attend(h, dictionary)
        after = lista_step(x, z, z @ dictionary.T, dictionary, model.sparsity, c)
        tokens = [lista_loss(x, codes, dictionary, model.sparsity) for codes in (z, after)]
        before, between, end = (
            dust_energy(x, codes, dictionary, model.sparsity, model.layer.correlation) for codes in (h, z, after)
        )
        shares = share_raised(*tokens), share_raised(before, between), share_raised(before, end)
        table.add_row(str(layer + 1), *shares, f"{c.item():.2f}")
        h = after
    return table


if __name__ == "__main__":
    root, *paths = map(Path, sys.argv[1:])
    for run_path in paths:
        Console(width=120).print(trained(run_path, root))
