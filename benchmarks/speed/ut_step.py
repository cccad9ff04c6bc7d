"""A training step of UT against the fastest of its own matrix products."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.speed.bench import Bench, Outcome, Setting
from benchmarks.speed.matrix_products import share_of_peak, training_step
from cudt.config import recipe
from cudt.data.batching import Batch
from cudt.models.assemble import assemble_model
from cudt.models.base import Visit
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.unrolled import Config
from cudt.models.unrolled_network import UnrolledTransformer


class AsPrinted(UnrolledTransformer):
    """The layers of UT in the products and passes in which unrolled.py prints them."""

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        mask, eta = batch["attention_mask"].bool(), self.layer.step_size
        x = signal + self.positions.weight[: signal.shape[1]]
        for layer in range(self.n_layers):
            w1, w2 = self.layer_weights(layer)
            y = x @ w1.T
            logits = (y @ y.transpose(-1, -2)).masked_fill(~mask.unsqueeze(-2), -torch.inf)
            z = torch.softmax(logits, dim=-1) @ x
            x = torch.relu((1 - eta) * z - (0.5 * eta) * (z @ (w2 + w2.T)))
            visit(x)


def measure(setting: Setting) -> list[Outcome]:
    torch.manual_seed(0)
    reviews = assemble_model(recipe.load("reviews-ut"), None, torch.device("cpu"))
    batch = reviews.task.collate(reviews.task.examples("train")[:128])
    # The sizes of imdb-ut, on random words; half of the reviews' limit of tokens, which is about their mean length.
    sizes = Config(name="unrolled", layers=3, attention_width=64, tie_layers=True)
    imdb = LayerwiseLosses(UnrolledTransformer(sizes, nn.Embedding(30_522, 768), 256, 2), reviews.task)
    words = torch.randint(30_522, (16, 256))
    long = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.arange(16) % 2}
    return [
        _outcome("ut-step, reviews-ut", reviews, batch, rounds=7, steps=8),
        _outcome("ut-step, imdb-ut", imdb, long, rounds=4, steps=1),
    ]


def _outcome(name: str, ours: LayerwiseLosses, batch: Batch, *, rounds: int, steps: int) -> Outcome:
    before = copy.deepcopy(ours)
    before.model.__class__ = AsPrinted
    noise = 0.4 * torch.randn_like(ours.model.signal(batch)[0])
    new, old = (training_step(one, batch, noise) for one in (ours, before))
    return share_of_peak(new, old, name, rounds=rounds, steps=steps)


BENCH = Bench(
    name="ut-step",
    what="GFLOP/s of a training step of UT ÷ of its fastest matrix product",
    goal=0.55,
    higher_is_better=True,
    measure=measure,
)
