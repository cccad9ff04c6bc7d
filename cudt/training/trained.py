"""The trained model of a finished run."""

from __future__ import annotations

from pathlib import Path

from cudt.data.loader import batches
from cudt.models.assemble import assemble_model
from cudt.models.layer_losses import LayerwiseLosses, measure_sigma
from cudt.runs.data_root import data_root_of
from cudt.runs.info import RunInfo, SigmaX
from cudt.runs.run import Run, check_same_base
from cudt.training.checkpoint import load_weights
from cudt.utils.device import DeviceName, choose, make_current
from cudt.utils.processes import is_main_process


def load(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The run's model and its task; refuses other pretrained weights than the run was trained
    with.
    """
    chosen = choose(device)
    make_current(chosen)
    with data_root_of(run, data_root) as root:
        layerwise = assemble_model(run.recipe, root, chosen)
    check_same_base(run, layerwise.frozen_digest())
    layerwise.load_learned_weights(load_weights(run))
    return layerwise.eval()


def load_for_noise(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The same, with σ_x of its weights in run.json; hold the run's lock.

    Training measures σ_x of the run's own weights alone, so that of others is measured here, by the
    main process.
    """
    layerwise = load(run, device, data_root)
    if run.other_weights and layerwise.model.signal_is_learned and is_main_process():
        _record_sigma(run, layerwise)
    return layerwise


def sigma_of(run: Run, layerwise: LayerwiseLosses) -> float:
    """σ_x of the loaded weights: that of training, or measured for weights that are not the run's
    own.
    """
    if not (run.other_weights and layerwise.model.signal_is_learned):
        return run.finished_info().sigma_x.evaluation
    task, device = layerwise.task, next(layerwise.parameters()).device
    examples = batches(
        task, task.examples("train"), run.recipe.settings.evaluation.batch_size, device
    )
    return measure_sigma(layerwise.model, examples)


def _record_sigma(run: Run, layerwise: LayerwiseLosses) -> None:
    training = run.finished_info().sigma_x.training
    run.update_info(RunInfo(sigma_x=SigmaX(training=training, evaluation=sigma_of(run, layerwise))))
