"""How often the CPU waits for the device: once per update, not at all per layer or log, once per measured batch."""

from __future__ import annotations

import pytest
import torch

from cudt.config import recipe
from cudt.models.assemble import assemble
from cudt.models.layer_losses import measure_batches
from cudt.noise.source import NoiseSource
from cudt.runs.find import run_for
from cudt.training.trainer import Trainer
from cudt.utils.device import accelerator_for
from tests.conftest import quiet, tiny_recipe
from tests.shadow.device import active, watch

SETTINGS = [
    (),
    ("descent.form=log",),
    ("descent.gradient=proxy",),
    ("descent.resilience=slack", "descent.beta=1.0"),
    ("descent.resilience=slack", "descent.beta=1.0", "descent.form=log"),
    ("training.accumulation=3",),
    ("noise.gamma_train=0",),
    ("noise.kind=uniform",),
]


@pytest.fixture(autouse=True)
def _shadow():
    with active():
        yield


def trainer_on(device: str, tmp_path, *overrides: str, objective: str = "constrained") -> Trainer:
    loaded = tiny_recipe("loading.workers=0", *overrides, objective=objective)
    accelerator = accelerator_for(device, "fp32")
    trainer = Trainer(run_for(loaded, tmp_path), assemble(loaded, None, accelerator.device), accelerator, quiet())
    trainer.state.sigma_x = trainer._measure_sigma()
    trainer.descent._multiplier.weight.data += torch.tensor([0.0, 1.0, 0.5])
    return trainer


def updated(trainer: Trainer) -> list[torch.Tensor]:
    """f of two updates, each with a log."""
    found = []
    for micro_batches, _ in zip(trainer._remaining_updates(), range(2), strict=False):
        f, grad_norm = trainer._update(micro_batches)
        trainer.state.step += 1
        trainer._log_update(f, grad_norm)
        found += [f, trainer.descent.multiplier_values.clone()]
    return found


@pytest.mark.parametrize("objective", ["constrained", "erm", "supervised"])
@pytest.mark.parametrize("overrides", SETTINGS, ids=" ".join)
def test_an_update_waits_once_and_its_log_not_at_all(tmp_path, overrides, objective):
    trainer = trainer_on("shadow", tmp_path, *overrides, objective=objective)
    with watch() as seen:
        found = updated(trainer)
    assert ["_wait_for_losses" in event.line for event in seen.waits] == [True, True], seen
    assert not seen.copies, seen
    expected = updated(trainer_on("cpu", tmp_path, *overrides, objective=objective))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert trainer.history.rows


def test_the_log_form_in_micro_batches_waits_once_more_for_the_weights_of_layers(tmp_path):
    trainer = trainer_on("shadow", tmp_path, "descent.form=log", "training.accumulation=3")
    with watch() as seen:
        updated(trainer)
    assert sum(event.operation == "copy to the CPU" for event in seen.waits) == 4, seen


def test_a_measured_batch_waits_once_for_all_levels_and_sigma_once_for_all_batches(tmp_path):
    expected = trainer_on("cpu", tmp_path, "evaluation.batch_size=16").state.sigma_x
    trainer = trainer_on("shadow", tmp_path, "evaluation.batch_size=16")
    with watch() as seen:
        sigma = trainer._measure_sigma()
    assert len(seen.waits) == 1, seen
    assert sigma == expected
    source, levels = NoiseSource("gaussian", sigma, 0), [0.0, 0.5, 1.0]
    with watch() as seen:
        parts = list(measure_batches(trainer.layerwise, trainer._split("validation"), source, levels))
    assert [len(part) for part in parts] == [3, 3, 3]
    assert len(seen.waits) == 3, seen
    assert not seen.copies, seen


def test_a_task_with_an_input_that_is_an_answer_also_waits_once(tmp_path):
    loaded = recipe.load("smoke-video", ["loading.workers=0", "task.train=2", "task.validation=1"])
    accelerator = accelerator_for("shadow", "fp32")
    trainer = Trainer(run_for(loaded, tmp_path), assemble(loaded, None, accelerator.device), accelerator, quiet())
    trainer.state.sigma_x = 40.0
    with watch() as seen:
        measured = trainer._validate()
    # A measurement by DUST waits once more, for the norms of its dictionaries.
    assert [event.operation for event in seen.waits] == ["aten::_linalg_eigh", "copy to the CPU"], seen
    assert measured.input_scores is not None
