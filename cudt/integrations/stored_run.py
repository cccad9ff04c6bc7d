"""Leaves a run of cudt behind a `DescentTrainer`: `report_to_cudt="outputs"`.

The run folder has everything that evaluation needs: the model in model/, the examples in data/, and a recipe that names
both relative to the folder, which can be moved. Only the base model of an adapter is elsewhere.
"""

from __future__ import annotations

import math
import random
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from cudt.data.loading import batches
from cudt.data.splits import SEEN, SPLITS
from cudt.data.stored_examples import write_examples
from cudt.integrations.input_noise import measured_sigma
from cudt.integrations.trained_examples import examples_of
from cudt.integrations.trained_recipe import DATA, check_base, kind_of, recipe_of
from cudt.method import feasibility
from cudt.method.measurement import Measurement
from cudt.models.assemble import TrainingProblem, assemble_model
from cudt.models.layer_losses import LayerwiseLosses, measure, measure_sigma
from cudt.noise.source import NoiseSource
from cudt.runs import checksums, export
from cudt.runs.find import run_for
from cudt.runs.info import MultiplierInfo, RunInfo
from cudt.runs.run import Run, write_recipe
from cudt.training import conclusion
from cudt.training.checkpoint_file import write_tensors
from cudt.training.history import History
from cudt.training.shards import gathered_weights
from cudt.training.started import started_info, utc_now, versions
from cudt.training.state import TrainingState
from cudt.utils.device import random_state, set_random_state
from cudt.utils.errors import UserError

_BY_LAYER = re.compile(r"(eval_)?(loss|violation|multiplier|weight|slack)/layer_(\d+)")


class StoredRun(TrainerCallback):
    """The run of a trainer, which it writes: what is known before the first update, and the rest at the end."""

    def __init__(self, trainer: Any, out: Path, test_dataset: Any) -> None:
        """Refuses what cannot be a run, before any training."""
        self._trainer, self._out, self._held = trainer, out, ExitStack()
        self.kind = kind_of(trainer.model)
        check_base(trainer.model)
        self._datasets = {"train": trainer.train_dataset, "validation": trainer.eval_dataset, "test": test_dataset}
        for split, dataset in self._datasets.items():
            if dataset is None and split != "test":
                raise UserError(f"report_to_cudt: a run needs {split} data; give train_dataset and eval_dataset")
            if dataset is not None and (isinstance(dataset, dict) or not hasattr(dataset, "__len__")):
                raise UserError(
                    f"report_to_cudt: the {split} data are several data sets, or have no length; give one that has"
                )
        is_other = getattr(trainer.args, "loss_type", "nll") not in ("nll", "chunked_nll")
        if is_other or trainer.compute_loss_func is not None or trainer.label_smoother is not None:
            raise UserError(
                "report_to_cudt: cudt evaluates the cross-entropy, and this trainer minimises another loss; leave out "
                "compute_loss_func, label_smoothing_factor and loss_type"
            )
        if trainer.args.auto_find_batch_size:
            raise UserError(
                "report_to_cudt: the recipe has the batch size, so it must be known before the training; set "
                "per_device_train_batch_size, and leave out auto_find_batch_size"
            )
        self.run: Run = run_for(recipe_of(trainer), out)
        self._check_new()

    def _check_new(self) -> None:
        if self.run.info().status == "finished":
            raise UserError(
                f"report_to_cudt: '{self.run.path}' is a finished run of the same settings; set run_name or seed, or "
                "delete the folder"
            )

    # ---------------------------------------------------------------- the beginning

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Write recipe, data and the first run.json, and measure σ_x of the weights before training."""
        trainer = self._trainer
        noise, plain = trainer.noise, trainer.plain_batches
        self._sigma = noise.sigma_x or measured_sigma(trainer.model, plain(trainer.train_dataset))
        # Also without noise: checkpoints contain it, and a training that resumes has other weights.
        noise.sigma_x = self._sigma
        # Trainer changes its arguments after it was made, in hyperparameter_search.
        self.run = run_for(recipe_of(trainer), self._out)
        if not trainer.is_world_process_zero():
            return
        self._held.enter_context(self.run.locked())
        self._check_new()
        write_recipe(self.run)
        (self.run.path / DATA).mkdir(exist_ok=True)
        for split in SPLITS:
            dataset, name = self._datasets[split], f"{DATA}/{split}.parquet"
            if dataset is not None:
                dataset = trainer.prepared(dataset) if split == "test" else dataset
                write_examples(self.run.path / name, examples_of(plain(dataset), self.kind), self.kind)
                checksums.record_existing(self.run.path, name)
        recipe = self.run.recipe
        self.run.update_info(
            RunInfo(
                status="running",
                reason=None,
                recipe=recipe.name,
                objective=recipe.settings.objective,
                seed=recipe.settings.seed,
                variant=recipe.identity(without_seed=True),
                # The run folder itself.
                data_root=".",
                versions=versions(),
                command=shlex.join(sys.orig_argv),
                begun=utc_now(),
            )
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the training: record that it failed or was interrupted, and release the run."""
        try:
            yield
        except BaseException as error:
            if self.run.info().status == "running" and self._trainer.is_world_process_zero():
                is_failure = isinstance(error, Exception)
                reason = f"{type(error).__name__}: {error}" if is_failure else None
                self.run.update_info(RunInfo(status="failed" if is_failure else "interrupted", reason=reason))
            raise
        finally:
            self._held.close()

    # ---------------------------------------------------------------- the end

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write weights, tables, verdict and model. All processes save the model, since each may have a part of it."""
        trainer = self._trainer
        trainer.save_model(str(self.run.path / export.FOLDER))
        if trainer.is_world_process_zero():
            with _own_randomness():
                self._finish()
        trainer.accelerator.wait_for_everyone()

    def _finish(self) -> None:
        run, trainer = self.run, self._trainer
        # Loaded as evaluation will load it, so that what is measured here is what is evaluated later.
        layerwise = assemble_model(run.recipe, run.path, trainer.accelerator.device).eval()
        file = run.weights_file(run.recipe.settings.training.select)
        file.parent.mkdir(exist_ok=True)
        write_tensors(file, gathered_weights(layerwise, keep=True))
        _history(trainer).append(run)
        names = (file.relative_to(run.path).as_posix(), "history.csv")
        checksums.record_existing(run.path, *names)
        problem = TrainingProblem(layerwise.task, layerwise, trainer.problem.objective)
        data, base = layerwise.task.fingerprint(SEEN), layerwise.frozen_digest()
        started = started_info(run.recipe, problem, trainer.accelerator, data, base, shlex.join(sys.orig_argv))
        run.update_info(RunInfo(**started.model_dump(exclude={"begun"}, exclude_unset=True)))
        self._conclude(problem)
        run.update_info(RunInfo(ended=utc_now(), saved_model=export.export(run, layerwise)))
        if layerwise.task.tokenizer is None and trainer.processing_class is not None:
            _add_processor(run, trainer.processing_class)

    def _conclude(self, problem: TrainingProblem) -> None:
        run, layerwise, descent = self.run, problem.layerwise, problem.descent
        measured = _validated(run, layerwise, self._sigma)
        slack = descent.slack_in_loss_units(measured.layer_losses).cpu().double()
        verdicts = feasibility.judge(measured, descent.reference, descent.rates, slack, descent.form)
        found = self._trainer.state
        best = found.best_global_step if run.weights == "best" else None
        state = TrainingState(
            epoch=_epoch(found, found.global_step),
            step=found.global_step,
            sigma_x=self._sigma,
            best_epoch=_epoch(found, best or found.global_step),
            best_step=best,
            best_multipliers=None if best is None else _multipliers_at(found, best),
        )
        conclusion.write(run, problem, state, measured, verdicts, _sigma_now(run, layerwise))
        if self._trainer.last_multipliers is not None:
            last = MultiplierInfo(best=state.best_multipliers, last=self._trainer.last_multipliers)
            run.update_info(RunInfo(multipliers=last))


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Leave the generators of the program that trains as they were: building a model sets their seeds."""
    before = random_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        set_random_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def _validated(run: Run, layerwise: LayerwiseLosses, sigma_x: float) -> Measurement:
    settings, task = run.recipe.settings, layerwise.task
    examples = batches(task, task.examples("validation"), settings.evaluation.batch_size, _device(layerwise))
    noise = NoiseSource(settings.noise.kind, sigma_x, "validation")
    (measured,) = measure(layerwise, examples, noise, [settings.noise.gamma_train])
    return measured


def _sigma_now(run: Run, layerwise: LayerwiseLosses) -> float:
    task, size = layerwise.task, run.recipe.settings.evaluation.batch_size
    return measure_sigma(layerwise.model, batches(task, task.examples("train"), size, _device(layerwise)))


def _device(layerwise: LayerwiseLosses) -> Any:
    return next(layerwise.parameters()).device


def _epoch(state: Any, step: int) -> int:
    """The epoch that an update belongs to, counted from 1."""
    return max(1, math.ceil(step * (state.epoch or 1) / max(1, state.global_step)))


def _multipliers_at(state: Any, step: int) -> list[float] | None:
    """λ as it was logged at an update or before it; None if it was not."""
    logged = [row for row in state.log_history if row["step"] <= step and "multiplier/layer_01" in row]
    if not logged:
        return None
    return [value for name, value in sorted(logged[-1].items()) if name.startswith("multiplier/layer_")]


def _history(trainer: Any) -> History:
    """The rows of history.csv, from what Trainer logged."""
    history, n_layers = History(), trainer.problem.descent.n_layers
    for logged in trainer.state.log_history:
        step, epoch = logged["step"], max(1, math.ceil(logged.get("epoch", 1)))
        rows: dict[tuple[str, int, str], float] = {}
        for name, value in logged.items():
            if found := _BY_LAYER.fullmatch(name):
                rows["validation" if found[1] else "train", int(found[3]), found[2]] = value
        if "loss" in logged and not rows:
            rows["train", n_layers, "loss"] = logged["loss"]
        if "grad_norm" in logged:
            rows["train", 0, "gradient_norm"] = logged["grad_norm"]
        for (split, layer, name), value in [*rows.items()]:
            if split == "train" and name == "violation":
                rows[split, layer, "price"] = value * rows[split, layer, "multiplier"]
        for (split, layer, name), value in rows.items():
            history.record(step, epoch, split, [layer], {name: [value]})
    return history


def _add_processor(run: Run, processor: Any) -> None:
    """Save what made the inputs next to the model, such as an image processor; cudt itself does not need it."""
    folder = run.path / export.FOLDER
    before = {path.name for path in folder.iterdir()}
    processor.save_pretrained(folder)
    added = sorted({path.name for path in folder.iterdir()} - before)
    checksums.record_existing(run.path, *(f"{export.FOLDER}/{name}" for name in added))
