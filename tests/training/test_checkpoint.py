from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cudt.models.assemble import assemble
from cudt.runs.find import run_for
from cudt.training.checkpoint import Checkpoints, TrainingState, load_last, load_weights
from cudt.training.history import History
from cudt.utils.errors import DataWarning, UserError
from tests.conftest import tiny_recipe

STATE = TrainingState(
    2, 9, 3, 0.5, [0.0, 0.25], 1, [0.1, 0.2, 0.3], [0.2, 0.3, 0.4], [1.0, 0.0, 2.0], validation_losses=[0.6, 0.5, 0.4]
)


def checkpoints(tmp_path, seed: int) -> Checkpoints:
    """Those of one run, around a new model."""
    problem = assemble(tiny_recipe(seed=seed), None, torch.device("cpu"))
    optimizer = torch.optim.Adam(problem.layerwise.parameters())
    return Checkpoints(run_for(tiny_recipe(), tmp_path), problem.layerwise, optimizer, problem.descent)


def test_everything_that_is_saved_is_restored_in_another_model(tmp_path):
    first, second = checkpoints(tmp_path, 0), checkpoints(tmp_path, 1)
    assert not first.exist()
    history = History([(1, 1, "train", 1, "loss", 0.5)])
    first.save(STATE, history)
    drawn = torch.rand(3)
    assert second.exist()
    assert second.restore() == (STATE, history)
    weights = second.layerwise.learned_weights()
    assert all(torch.equal(value, weights[name]) for name, value in first.layerwise.learned_weights().items())
    assert torch.equal(torch.rand(3), drawn)


def test_the_file_has_the_keys_of_earlier_versions_and_the_new_ones(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    content = load_last(saved.run)
    assert list(content) == [
        "progress",
        "validation_losses",
        "weights",
        "optimizer",
        "descent",
        "history_length",
        "generator",
        "device_generator",
    ]
    assert list(content["progress"]) == [
        "epoch",
        "step",
        "step_in_epoch",
        "sigma_x",
        "best",
        "best_epoch",
        "best_slack",
        "last_slack",
        "best_multipliers",
    ]


def test_a_checkpoint_of_an_earlier_version_resumes_and_the_best_epoch_is_chosen_anew(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    content = load_last(saved.run)
    for key in ("last_slack", "best_multipliers"):
        del content["progress"][key]
    torch.save(content, saved.run.last_checkpoint)
    with pytest.warns(DataWarning, match="chosen among those that follow"):
        state, _ = saved.restore()
    # Ranks of different rules cannot be compared.
    assert state == replace(STATE, best=None, last_slack=[], best_multipliers=None)


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_saved_weights_are_those_of_the_model(tmp_path, which):
    saved = checkpoints(tmp_path, 0)
    saved.save_weights(which)
    loaded = load_weights(saved.run.with_weights(which))
    learned = saved.layerwise.learned_weights()
    assert loaded.keys() == learned.keys()
    assert all(torch.equal(loaded[name], learned[name]) for name in learned)


def test_damaged_files_are_errors_that_name_the_file(tmp_path):
    run = checkpoints(tmp_path, 0).run
    run.weights_file("best").parent.mkdir(parents=True)
    with pytest.raises(UserError, match=r"best\.safetensors: missing or damaged .*delete .* to train again"):
        load_weights(run)
    with pytest.raises(UserError, match=r"last\.safetensors: missing \(earlier versions .* leave out --weights"):
        load_weights(run.with_weights("last"))
    run.last_checkpoint.write_text("junk")
    with pytest.raises(UserError, match=r"last\.pt: damaged .*delete it to train from the beginning"):
        load_last(run)
