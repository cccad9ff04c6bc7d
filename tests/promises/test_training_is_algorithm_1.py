"""Fifty updates of `cudt train` are those of the paper's Algorithm 1, written out here in plain
PyTorch: no Cooper, no Accelerate, no trainer. Model, data and a draw of noise come from cudt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import cudt
from cudt.noise import NoiseSource
from cudt.training.train import assemble_model, train
from tests.conftest import quiet
from tests.pretrained import tiny_pretrained
from tests.texts import write_reviews

UPDATES, CPU = 50, torch.device("cpu")
SIZES = {
    "encoder": (
        *("task.limit={train: 40, validation: 8}", "training.epochs=5", "training.batch_size=4"),
        *("training.learning_rate=1e-3", "noise.gamma_train=0.5"),
    ),
    "smoke-video": (
        *("task.train=5", "training.epochs=10", "training.batch_size=2", "descent.warmup_epochs=0"),
        *("training.learning_rate=3e-6", "noise.gamma_train=0.1"),
    ),
}
FORMS = [
    (form, resilience, decay)
    for form in ("linear", "log")
    for resilience, decay in (("slack", "coupled"), ("decay", "coupled"), ("decay", "decoupled"))
]


def algorithm_1(settings: Any, layerwise: Any, reference: float) -> list[dict[str, Any]]:
    """The losses f, the multipliers λ and the slacks u of every update."""
    descent, training, noise = settings.descent, settings.training, settings.noise
    model, task = layerwise.model.train(), layerwise.task
    examples, n_layers = task.examples("train"), model.n_layers
    log, beta, rate = descent.form == "log", descent.beta, descent.dual.learning_rate
    has_slack, coupled = descent.resilience == "slack", descent.decay == "coupled"
    sigma_x = sigma(model, [task.collate([one]) for one in examples])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    slack = torch.zeros(n_layers, requires_grad=True)
    unit = 1.0 if log else reference
    groups = [{"params": weights}, {"params": [slack], "lr": unit * training.learning_rate}]
    primal = torch.optim.Adam(groups, lr=training.learning_rate, fused=True)
    multipliers = torch.zeros(n_layers)
    first, second = torch.zeros(n_layers), torch.zeros(n_layers)  # the moments of the dual Adam
    seen: list[dict[str, Any]] = []
    for epoch in range(training.epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(examples))
        source = NoiseSource("gaussian", sigma_x, f"train {settings.seed} {epoch}")
        for start in range(0, len(examples) - training.batch_size + 1, training.batch_size):
            chosen = order[start : start + training.batch_size]
            batch = task.collate([examples[index] for index in chosen])
            # f_l, with γ·σ_x·ε added to the signal.
            signal, mask = model.signal(batch)
            drawn = source.draw(batch["ids"], mask.sum(1).tolist(), signal.shape)
            states = model.layer_states(signal + noise.gamma_train * drawn, batch)
            answers = [model.readout(state, batch).float() for state in states]
            f = torch.stack([task.losses(answer, batch).mean() for answer in answers])
            # J = f_L + Σ λ_l·(g_l − u_l) + β/2·‖u‖²
            before = torch.cat([torch.tensor([reference]), f[:-1]])
            if log:
                g = f.log() - before.log() - math.log(1 - descent.alpha)
            else:
                g = f - (1 - descent.alpha) * before
            loss = (f[-1].log() if log else f[-1]) + (multipliers * g).sum()
            if has_slack:
                loss = loss - (multipliers * slack).sum() + beta / 2 * slack.square().sum()
            primal.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, training.clip_norm)
            # λ ← [λ + ascent]₊, from the same f.
            ascent = g.detach() - (slack.detach() if has_slack else 0)
            if not has_slack and coupled:
                ascent = ascent - multipliers / beta
            elif not has_slack:
                multipliers = (1 - rate / beta) * multipliers
            step = len(seen) + 1
            first, second = 0.9 * first + 0.1 * ascent, 0.999 * second + 0.001 * ascent.square()
            direction = first / (1 - 0.9**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            multipliers = (multipliers + rate * direction).clamp_min(0)
            primal.step()
            slack.data.clamp_(min=0)
            u = slack.detach().clone() if has_slack else multipliers / beta
            seen.append({"loss": f.detach(), "multiplier": multipliers, "slack": u})
        slack.data.zero_()
    return seen


@torch.no_grad()
def sigma(model: Any, batches: list[Any]) -> float:
    """The standard deviation of the signal of all examples, without padding."""
    parts = []
    for batch in batches:
        signal, mask = model.signal(batch)
        parts.append(signal[mask.bool()].double().flatten())
    return float(torch.cat(parts).std(unbiased=False))


def encoder(folder: Path) -> str:
    """A recipe of a random BERT without dropout, on a file of reviews."""
    write_reviews(folder)
    name = tiny_pretrained(
        folder / "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    recipe = folder / "encoder.yaml"
    texts = "task: {name: text, train: train.csv, test: test.csv, text: review, label: opinion}"
    recipe.write_text(f"base: smoke-text\n{texts}\nmodel: {{name: encoder, pretrained: {name}}}\n")
    return str(recipe)


@pytest.mark.parametrize("recipe", SIZES)
def test_fifty_updates_are_those_of_algorithm_1(recipe, tmp_path):
    name = encoder(tmp_path) if recipe == "encoder" else recipe
    for form, resilience, decay in FORMS:
        changes = [
            *SIZES[recipe],
            *(f"descent.form={form}", f"descent.resilience={resilience}", f"descent.decay={decay}"),
            *("descent.dual={optimizer: adam, learning_rate: 1e-2}", "descent.beta=2.0"),
            "training.log_every=1",
        ]
        loaded = cudt.load_recipe(name, changes, objective="constrained")
        run = train(loaded, tmp_path / "runs", "cpu", tmp_path, quiet())
        layerwise = assemble_model(loaded, tmp_path, CPU)
        literal = algorithm_1(loaded.settings, layerwise, run.finished_info().reference)
        history = run.read_table("history").query("split == 'train'")
        assert len(literal) == UPDATES
        for quantity in ("loss", "multiplier", "slack"):
            rows = history[history["name"] == quantity]
            found = pd.pivot_table(rows, "value", "step", "layer").to_numpy()
            expected = torch.stack([one[quantity] for one in literal]).numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
