"""A training step of DUST against the fastest of its own matrix products."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from benchmarks.speed.bench import Bench, Outcome, Setting
from benchmarks.speed.matrix_products import share_of_peak, training_step
from cudt.config import recipe
from cudt.data.batching import Batch
from cudt.models.assemble import assemble_model
from cudt.models.base import Visit
from cudt.models.dust_network import Dust
from cudt.models.patches import to_patches

#: Sizes of ucsd-dust-cpu, on generated video; the other row has those of shapes-dust.
_UCSD = ("task.size=160", "task.train=2", "model.layers=5", "model.patch=16", "model.atoms=24")
_ROWS = {"dust-step, ucsd-dust-cpu": (_UCSD, 2, 1), "dust-step, shapes-dust": ((), 4, 5)}


class AsPrinted(Dust):
    """The layers of DUST in the products and passes in which dust.py prints them."""

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = to_patches(signal, self.patch)
        h = x.new_zeros(*x.shape[:-1], self.dictionary(0).shape[1])
        norms = [_squared_norm(dictionary) for dictionary in self.dictionaries]
        for layer in range(self.n_layers):
            dictionary, c = self.dictionary(layer), norms[layer % len(norms)]
            y = h @ dictionary.T
            z = self.layer.correlation * (torch.softmax(y @ y.transpose(-1, -2), dim=-1) @ h) if layer else h
            u, threshold = z + (x - z @ dictionary.T) @ dictionary / c, self.sparsity / c
            h = u - u.clamp(-threshold, threshold)
            visit(h @ dictionary.T)


def _squared_norm(dictionary: Tensor) -> Tensor:
    with torch.no_grad():
        direction = torch.linalg.eigh(dictionary @ dictionary.T).eigenvectors[:, -1]
    return (dictionary.T @ direction).square().sum()


def measure(setting: Setting) -> list[Outcome]:
    outcomes = []
    for name, (sizes, examples, steps) in _ROWS.items():
        ours = assemble_model(recipe.load("shapes-dust", sizes), None, torch.device("cpu"))
        batch = ours.task.collate(ours.task.examples("train")[:examples])
        noise = 10 * torch.randn(batch["frames"].shape)
        before = copy.deepcopy(ours)
        before.model.__class__ = AsPrinted
        new, old = (training_step(one, batch, noise) for one in (ours, before))
        outcomes.append(share_of_peak(new, old, name, rounds=5, steps=steps))
    return outcomes


BENCH = Bench(
    name="dust-step",
    what="GFLOP/s of a training step of DUST ÷ of its fastest matrix product",
    goal=0.55,
    higher_is_better=True,
    measure=measure,
)
