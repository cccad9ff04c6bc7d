from __future__ import annotations

import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cudt.config.schema import Dual
from cudt.integrations.lightning import LayerwiseDescentCallback
from cudt.method import constraints
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import Measurement
from cudt.utils.errors import UserError
from tests.integrations.modules import (
    N_LAYERS,
    SLACK,
    Module,
    by_hand,
    data,
    fitted,
    loader,
    problem,
)
from tests.processes import together

RESILIENCE: list[dict[str, Any]] = [{}, SLACK, {"resilience": "decay", "beta": 0.5}]
KINDS = ["none", "slack", "decay"]


def close(model: nn.Module, expected: nn.Module, tolerance: float = 1e-6) -> bool:
    pairs = zip(model.parameters(), expected.parameters(), strict=True)
    return all(torch.allclose(mine, its, rtol=0, atol=tolerance) for mine, its in pairs)


def same(found: LayerwiseDescent, expected: LayerwiseDescent, tolerance: float = 1e-6) -> bool:
    """Whether λ and u are the same, and not trivially."""
    assert expected.multiplier_values.max() > 0.01
    pairs = [(one.multiplier_values, one.slack) for one in (found, expected)]
    return all(
        torch.allclose(mine, its, rtol=0, atol=tolerance) for mine, its in zip(*pairs, strict=True)
    )


# ---------------------------------------------------------------- the same steps as a plain loop


@pytest.mark.parametrize("accumulated", [1, 2, 4])
@pytest.mark.parametrize("resilience", RESILIENCE, ids=KINDS)
def test_accumulated_batches_give_the_step_of_one_batch(tmp_path, resilience, accumulated):
    callback, expected = LayerwiseDescentCallback(problem(**resilience)), problem(**resilience)
    module, trainer = fitted(
        callback, tmp_path, batch_size=8 // accumulated, accumulate_grad_batches=accumulated
    )
    assert trainer.global_step == 6
    assert close(module.model, by_hand(expected)[0])
    assert same(callback.descent, expected)


@pytest.mark.parametrize(
    "settings", [{"form": "log"}, {"form": "log", **SLACK}, {"form": "ladder"}]
)
@pytest.mark.parametrize("gradient", ["full", "proxy"])
def test_every_form_and_gradient_gives_the_step_of_a_plain_loop(tmp_path, settings, gradient):
    callback, expected = (
        LayerwiseDescentCallback(problem(gradient=gradient, **settings)) for _ in range(2)
    )
    module, _ = fitted(callback, tmp_path)
    assert close(module.model, by_hand(expected.descent)[0])
    assert same(callback.descent, expected.descent)


@pytest.mark.parametrize("objective", ["constrained", "erm", "supervised"])
def test_every_objective_gives_the_step_of_a_plain_loop(tmp_path, objective):
    callback = LayerwiseDescentCallback(problem(**SLACK), objective=objective)
    module, _ = fitted(callback, tmp_path, batch_size=4, accumulate_grad_batches=2)
    expected = problem(**SLACK)
    assert close(module.model, by_hand(expected, objective)[0])
    assert torch.allclose(
        callback.descent.multiplier_values, expected.multiplier_values, rtol=0, atol=1e-6
    )
    assert (callback.descent.multiplier_values.max() > 0) == (objective == "constrained")


def test_warm_up_trains_without_constraints(tmp_path):
    callback, expected = (
        LayerwiseDescentCallback(problem(**SLACK), warmup_epochs=1),
        problem(**SLACK),
    )
    warmed, _ = fitted(callback, tmp_path, max_epochs=1)
    assert close(warmed.model, by_hand(problem(), "erm", 1)[0])
    assert (
        callback.descent.multiplier_values.tolist()
        == callback.descent.slack.tolist()
        == [0.0] * N_LAYERS
    )
    callback = LayerwiseDescentCallback(problem(**SLACK), warmup_epochs=1)
    module, _ = fitted(callback, tmp_path)
    assert close(module.model, by_hand(expected, warmup_epochs=1)[0])
    assert same(callback.descent, expected)


def test_a_fit_begins_without_the_batches_of_one_that_was_interrupted(tmp_path, monkeypatch):
    callback, expected = LayerwiseDescentCallback(problem()), problem()
    step, calls = Module.training_step, iter(range(2))

    def fails(module: Module, batch: Any) -> Any:
        if next(calls):
            raise RuntimeError("within an update")
        return step(module, batch)

    monkeypatch.setattr(Module, "training_step", fails)
    with pytest.raises(RuntimeError, match="within an update"):
        fitted(callback, tmp_path, batch_size=4, accumulate_grad_batches=2)
    monkeypatch.setattr(Module, "training_step", step)
    fitted(callback, tmp_path, batch_size=4, accumulate_grad_batches=2)
    by_hand(expected)
    assert same(callback.descent, expected)


def test_clipping_is_lightnings(tmp_path):
    callback, expected = LayerwiseDescentCallback(problem(**SLACK)), problem(**SLACK)
    module, _ = fitted(callback, tmp_path, gradient_clip_val=0.05)
    assert close(module.model, by_hand(expected, clip=0.05)[0])
    assert same(callback.descent, expected)
    assert not close(module.model, by_hand(problem(**SLACK))[0], 1e-4)


def test_bf16_layers_give_the_steps_of_an_autocast_loop_and_multipliers_stay_in_fp32(tmp_path):
    callback, expected = LayerwiseDescentCallback(problem(**SLACK)), problem(**SLACK)
    module, _ = fitted(callback, tmp_path, precision="bf16-mixed")
    assert close(module.model, by_hand(expected, bf16=True)[0])
    assert same(callback.descent, expected)
    assert callback.descent.multiplier_values.dtype == torch.float32
    assert not close(module.model, by_hand(problem(**SLACK))[0], 1e-5)


def test_slack_is_restarted_in_every_epoch_unless_told_otherwise(tmp_path):
    ends = []
    for restarts in (True, False):
        callback = LayerwiseDescentCallback(problem(**SLACK), slack_restart=restarts)
        fitted(callback, tmp_path)
        ends.append(callback.descent.slack.sum().item())
    assert 0 < ends[0] < ends[1]


def test_the_loss_is_the_lagrangian_and_recorded_in_training_only(tmp_path):
    callback = LayerwiseDescentCallback(problem())
    module, trainer = fitted(callback, tmp_path)
    f = module.model(*data())
    trainer.training = True
    expected = callback.descent.lagrangian(f)
    value = callback.loss(f)
    assert value.item() == pytest.approx(expected.item())
    trainer.validating = True
    assert callback.loss(f).item() == pytest.approx(expected.item())
    assert len(callback._seen) == 1


# ---------------------------------------------------------------- several processes


@pytest.mark.parametrize("settings", [SLACK, {"form": "log", **SLACK}], ids=["linear", "log"])
def test_two_processes_give_the_steps_and_the_verdict_of_one(tmp_path, settings):
    accumulated = 1 if "form" in settings else 2
    shared = {
        "batch_size": 4 // accumulated,
        "accumulate_grad_batches": accumulated,
        "devices": 2,
        "strategy": "ddp",
    }

    def work(**options: Any) -> tuple[list[Any], ...]:
        torch.set_num_threads(1)
        callback = LayerwiseDescentCallback(problem(**settings))
        its, _ = fitted(callback, tmp_path, validate=True, **options)
        weights = nn.utils.parameters_to_vector(its.model.parameters())
        judged = [
            value for one in callback.verdicts or [] for value in (one.loss, one.standard_error)
        ]
        return (
            weights.tolist(),
            callback.descent.multiplier_values.tolist(),
            callback.descent.slack.tolist(),
            judged,
        )

    # In a process of its own, too: after a backward pass, this one could not be forked any more.
    (alone,) = together(1, work)
    first, second = together(2, lambda: work(**shared))
    assert first == second
    assert len(alone[-1]) == 2 * N_LAYERS
    for found, wanted in zip(first, alone, strict=True):
        assert found == pytest.approx(wanted, abs=2e-6)


# ---------------------------------------------------------------- checkpoints


def equal_batches() -> DataLoader[Any]:
    """Epochs of three equal batches: after a resume within an epoch, Lightning starts with the
    first batch."""
    return DataLoader(TensorDataset(*data()), 8, sampler=[*range(8)] * 3)


@pytest.mark.parametrize("resilience", RESILIENCE, ids=KINDS)
@pytest.mark.parametrize(
    ("every", "update"),
    [("every_n_train_steps", 2), ("every_n_epochs", 3)],
)
def test_resuming_from_a_checkpoint_gives_the_same_training(tmp_path, resilience, every, update):
    """Update 3 is the last of an epoch."""
    settings = {**resilience, "alpha": 0.6, "dual": Dual(optimizer="adam", learning_rate=0.1)}
    options: dict[str, Any] = {every: 1}
    files = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **options)
    found, expected = (
        LayerwiseDescentCallback(problem(**settings), warmup_epochs=1) for _ in range(2)
    )
    options = {"max_epochs": 3, "training": equal_batches()}
    whole, _ = fitted(expected, tmp_path, callbacks=[files], enable_checkpointing=True, **options)
    resumed, trainer = fitted(
        found, tmp_path, ckpt_path=tmp_path / f"step={update}.ckpt", **options
    )
    assert trainer.global_step == 9
    assert close(resumed.model, whole.model, 0)
    assert same(found.descent, expected.descent, 0)


def test_checkpoints_are_read_without_unpickling_code(tmp_path):
    callback = LayerwiseDescentCallback(problem(**SLACK))
    _, trainer = fitted(callback, tmp_path)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"][
        "LayerwiseDescentCallback"
    ]
    again = problem(**SLACK)
    again.load_state_dict(stored["descent"])
    assert same(again, callback.descent, 0)


# ---------------------------------------------------------------- what loggers show


def test_a_csv_logger_has_losses_violations_multipliers_slacks_and_weights(tmp_path):
    callback, descent = LayerwiseDescentCallback(problem(**SLACK)), problem(**SLACK)
    logger = CSVLogger(tmp_path, name="csv", version=0)
    fitted(callback, tmp_path, batch_size=4, accumulate_grad_batches=2, logger=logger)
    table = pd.read_csv(tmp_path / "csv" / "version_0" / "metrics.csv")
    losses = by_hand(descent)[1]
    assert len(table) == len(losses) == 6
    for layer in range(1, N_LAYERS + 1):
        found = table[f"loss/layer_{layer:02}"].tolist()
        assert found == pytest.approx([f[layer - 1].item() for f in losses], abs=1e-6)
    last = {
        "violation": descent.violations(losses[-1]),
        "multiplier": descent.multiplier_values,
        "slack": callback.descent.slack,
        "weight": descent.effective_weights(),
    }
    row = table.iloc[-1]
    for name in ("violation", "multiplier", "weight"):
        assert [row[f"{name}/layer_{layer:02}"] for layer in (1, 2, 3)] == pytest.approx(
            last[name].tolist(), abs=1e-6
        )
    assert row["slack/layer_01"] > 0


# ---------------------------------------------------------------- the verdict


def judged_by_hand(
    descent: LayerwiseDescent, losses: torch.Tensor, weights: torch.Tensor
) -> list[Any]:
    measured = Measurement(losses, losses, weights, [])
    slack = descent.slack_in_loss_units(measured.layer_losses)
    return constraints.judge(measured, descent.reference, descent.rates, slack, descent.form)


def test_the_verdict_is_that_of_single_examples(tmp_path, caplog, capsys):
    callback = LayerwiseDescentCallback(problem(**SLACK))
    with caplog.at_level("INFO"):
        module, _ = fitted(callback, tmp_path, validate=True)
    with torch.no_grad():
        losses = module.model(*data(), reduction="none").double()
    expected = judged_by_hand(callback.descent, losses, losses.new_ones(24))
    assert callback.verdicts is not None
    for found, its in zip(callback.verdicts, expected, strict=True):
        assert found.verdict == its.verdict
        assert found.loss == pytest.approx(its.loss)
        assert found.standard_error == pytest.approx(its.standard_error, rel=1e-5)
    assert "(after update 6; standard errors over 24 examples)" in caplog.text
    printed = capsys.readouterr().out
    assert all(one.verdict in printed and f"{one.loss:.4g}" in printed for one in expected)
    # Lightning has no eval_dataset.
    assert "constraints on validation data: " in printed


def test_means_of_batches_give_standard_errors_over_batches(tmp_path, caplog):
    callback = LayerwiseDescentCallback(problem())
    with caplog.at_level("INFO"):
        module, _ = fitted(callback, tmp_path, validate=True, per_example=False)
    with torch.no_grad():
        losses = torch.stack([module.model(*batch) for batch in loader(4)], 1).double()
    expected = judged_by_hand(callback.descent, losses, losses.new_full((6,), 4))
    assert callback.verdicts is not None
    errors = [one.standard_error for one in callback.verdicts]
    assert errors == pytest.approx([one.standard_error for one in expected], rel=1e-5)
    assert "standard errors over 6 batches" in caplog.text


def test_without_measurements_there_is_no_verdict(tmp_path):
    callback = LayerwiseDescentCallback(problem())
    fitted(callback, tmp_path)
    assert callback.verdicts is None


# ---------------------------------------------------------------- errors


def test_accumulation_in_the_log_form_is_refused(tmp_path):
    callback = LayerwiseDescentCallback(problem(form="log"))
    with pytest.raises(
        UserError,
        match=r"^accumulate_grad_batches: the log form needs .* set it to 1, or use form='lin",
    ):
        fitted(callback, tmp_path, accumulate_grad_batches=2)


def test_an_optimizer_without_the_slack_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(LayerwiseDescent, "add_slack_to", lambda *_: None)
    with pytest.raises(UserError, match=r"call callback\.descent\.add_slack_to\(optimizer\)"):
        fitted(LayerwiseDescentCallback(problem(**SLACK)), tmp_path)


def test_two_optimizers_are_refused(tmp_path, monkeypatch):
    def two(module: Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in module.model.layers[:2]]

    monkeypatch.setattr(Module, "configure_optimizers", two)
    monkeypatch.setattr(Module, "automatic_optimization", False)
    with pytest.raises(UserError, match="returned 2 optimizers"):
        fitted(LayerwiseDescentCallback(problem()), tmp_path)


def test_a_step_without_the_callbacks_loss_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Module, "training_step", lambda module, batch: module.model(*batch)[-1])
    with pytest.raises(UserError, match=r"Module\.training_step must return callback\.loss"):
        fitted(LayerwiseDescentCallback(problem()), tmp_path)


def test_constraints_inside_the_module_are_refused(tmp_path):
    callback = LayerwiseDescentCallback(problem())
    module = Module(callback)
    module.descent = callback.descent
    import lightning.pytorch as pl

    with pytest.raises(UserError, match="Module has the LayerwiseDescent as a submodule"):
        pl.Trainer(
            callbacks=[callback], accelerator="cpu", logger=False, default_root_dir=tmp_path
        ).fit(module, loader(8))


def test_without_lightning_the_error_says_what_to_install():
    code = "import sys; sys.modules['lightning'] = None; import cudt.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = (
        "ImportError: cudt.integrations.lightning needs Lightning; pip install 'cudt[lightning]'"
    )
    assert done.stderr.splitlines()[-1] == expected
