"""The trained model of a finished run."""

from __future__ import annotations

from pathlib import Path

from cudt.data.loader import batches
from cudt.models.assemble import assemble_model
from cudt.models.layer_losses import LayerwiseLosses, measure_sigma
from cudt.runs.run import Run, check_same_base, data_root_of
from cudt.training.checkpoint import load_weights
from cudt.utils.device import DeviceName, choose, make_current


def load(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The run's model and its task; refuses other pretrained weights than the run was trained
    with.
    """
    chosen = choose(device)
    make_current(chosen)
    layerwise = assemble_model(run.recipe, data_root_of(run, data_root), chosen)
    check_same_base(run, layerwise.frozen_digest())
    layerwise.load_learned_weights(load_weights(run))
    return layerwise.eval()


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
