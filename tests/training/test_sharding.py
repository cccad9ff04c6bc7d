"""Processes that share the weights of a model train as one process does, hold a part each, and
resume as others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file

from cudt.cli.experiment import experiment
from cudt.models.sharding import sharding_for
from cudt.runs.run import Run, find_runs, open_run
from cudt.utils.device import accelerator_for
from cudt.utils.errors import UserError
from tests.checkpoints import names, newest
from tests.sharded import MODELS, ONE_MACHINE, RESUMED, ROOT, environment, write_recipes

TWO_MACHINES = ONE_MACHINE.with_name("fsdp-2x8.yaml")


def in_groups(folder: Path, part: str) -> Path:
    """The folder of the runs of a part of tests/sharded.py."""
    write_recipes(folder)
    succeed(sys.executable, "-m", "tests.sharded", str(folder), part)
    return folder


def succeed(*command: str) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


#: One process of the tests takes them all: what they share takes twenty seconds.
pytestmark = pytest.mark.xdist_group("sharding")


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    return in_groups(tmp_path_factory.mktemp("core"), "core")


@pytest.fixture(scope="module")
def more(tmp_path_factory) -> Path:
    return in_groups(tmp_path_factory.mktemp("more"), "more")


def the_run(folder: Path) -> Run:
    (path,) = find_runs([folder])
    return open_run(path)


def assert_same(found: Path, expected: Path, tolerance: float = 1e-5) -> None:
    """The same history, verdicts and weights, all of a finished run."""
    one, other = the_run(found), the_run(expected)
    assert one.info().status == "finished"
    histories = [run.read_table("history") for run in (one, other)]
    keys = ["step", "epoch", "split", "layer", "name"]
    pd.testing.assert_frame_equal(histories[0][keys], histories[1][keys])
    losses = [
        table[table["name"].isin(["loss", "multiplier", "slack", "gradient_norm"])]
        for table in histories
    ]
    assert losses[0]["value"].tolist() == pytest.approx(losses[1]["value"].tolist(), abs=tolerance)
    for which in ("best", "last"):
        weights = [load_file(run.weights_file(which)) for run in (one, other)]
        assert weights[0].keys() == weights[1].keys()
        for name, weight in weights[0].items():
            assert torch.allclose(weight, weights[1][name], atol=tolerance), name
    verdicts = [[verdict.loss for verdict in run.finished_info().verdicts] for run in (one, other)]
    assert verdicts[0] == pytest.approx(verdicts[1], abs=tolerance)


# ---------------------------------------------------------------- the core


@pytest.mark.parametrize("case", ["whole", "lora"])
def test_two_processes_that_share_the_weights_train_as_one(core, case):
    assert_same(core / "shared" / case, core / "alone" / case)
    alone, shared = (the_run(core / name / case).info() for name in ("alone", "shared"))
    assert (shared.processes, shared.sharded, alone.sharded) == (2, True, False)


@pytest.mark.parametrize("case", ["whole", "lora"])
def test_both_processes_have_the_same_multipliers_after_every_update(core, case):
    first, second = (
        json.loads((core / f"multipliers-{case}-{rank}.json").read_text()) for rank in (0, 1)
    )
    assert first == second
    assert len(first) > 1
    assert max(first[-1]) > 0


@pytest.mark.parametrize("case", ["whole", "lora"])
def test_each_process_holds_half_of_weights_gradients_and_optimizer(core, case):
    for rank in (0, 1):
        held = json.loads((core / f"bytes-{case}-{rank}.json").read_text())
        assert set(held) == {"model", "weights", "gradients", "optimizer"}
        for what, (here, everywhere) in held.items():
            # The slacks, three numbers of fp32 and their moments, are in every process.
            assert here == pytest.approx(everywhere / 2, abs=24), what


def test_the_model_of_a_run_is_freed_before_the_next_one_is_loaded(core):
    assert [json.loads((core / f"alive-{rank}.json").read_text()) for rank in (0, 1)] == [
        [0, 0],
        [0, 0],
    ]


def test_frozen_weights_have_the_digest_of_one_process(core):
    digests = [the_run(core / name / "lora").info().frozen_weights for name in ("alone", "shared")]
    assert digests[0] == digests[1] != ""


def test_the_model_of_a_sharded_run_is_exported_whole(core):
    exported = [
        load_file(the_run(core / name / "whole").path / "model" / "model.safetensors")
        for name in ("alone", "shared")
    ]
    assert all(
        torch.allclose(exported[0][name], exported[1][name], atol=1e-5) for name in exported[0]
    )


def test_a_checkpoint_of_two_processes_is_shards_and_resumes_on_one(core):
    stopped = the_run(core / "from-2")
    content = newest(stopped)
    assert (stopped.info().status, content.progress.step, content.weights) == (
        "interrupted",
        4,
        "step-4",
    )
    shards = [f"step-4/{index}-of-2.safetensors" for index in (0, 1)]
    assert sorted(content.files) == [content.state_file, *shards]
    # Without the moments, which are in the shards.
    moments = [
        name for name in load_file(stopped.checkpoints / content.state_file) if "exp_avg" in name
    ]
    assert all("descent" in name for name in moments)
    assert not [
        path
        for path in stopped.checkpoints.rglob("*")
        if path.suffix not in (".json", ".safetensors", "")
    ]
    assert_same(core / "from-2-to-1-whole", core / "alone" / "whole")
    assert stopped.info().sharded
    assert not the_run(core / "from-2-to-1-whole").info().sharded


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("file", "machines", "processes"), [(ONE_MACHINE, 1, 8), (TWO_MACHINES, 2, 16)]
)
def test_the_configuration_files_are_accelerates_and_ask_for_fsdp2(file, machines, processes):
    config = load_config_from_file(str(file))
    assert (config.num_machines, config.num_processes, config.distributed_type.value) == (
        machines,
        processes,
        "FSDP",
    )
    variables = environment(file, processes)
    assert (variables["ACCELERATE_USE_FSDP"], variables["FSDP_VERSION"]) == ("true", "2")
    assert variables["FSDP_RESHARD_AFTER_FORWARD"] == "true"


def test_an_experiment_is_refused_before_it_trains(monkeypatch):
    for name, value in {**environment(), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UserError, match="cudt experiment: with FSDP, every process would put the whole model"
    ):
        experiment("reviews-ut")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FSDP_VERSION", "1", "set fsdp_config.fsdp_version to 2"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "model.gradient_checkpointing"),
        ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params"),
    ],
)
def test_settings_that_cudt_does_not_support_are_errors(monkeypatch, name, value, expected):
    for variable, its in {**environment(), name: value}.items():
        monkeypatch.setenv(variable, its)
    accelerator = accelerator_for("cpu", "fp32")
    assert sharding_for(accelerator) is None  # one process shares with nobody
    monkeypatch.setattr(type(accelerator), "num_processes", 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=expected):
        sharding_for(accelerator)


# ---------------------------------------------------------------- more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "tolerance"), [("log", 1e-5), ("encoder", 1e-5), ("compiled", 1e-5), ("bf16", 5e-3)]
)
def test_other_models_and_settings_train_as_in_one_process(more, case, tolerance):
    assert_same(more / "shared" / case, more / "alone" / case, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "count", "sharded"), RESUMED)
def test_a_run_resumes_in_any_number_of_processes_sharded_or_not(more, before, count, sharded):
    assert_same(
        more / f"from-{before}-to-{count}-{'sharded' if sharded else 'whole'}",
        more / "alone" / "whole",
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS, ids=str)
def test_so_does_every_model(more, case):
    alone, shared = (the_run(more / name / str(case)) for name in ("alone", "shared"))
    assert shared.info().sharded
    for name in ("history", "layers"):
        pd.testing.assert_frame_equal(
            shared.read_table(name), alone.read_table(name), rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow
def test_shards_that_no_checkpoint_names_are_left_aside(more):
    died = the_run(more / "from-0")
    assert newest(died).weights == "step-2"
    # The first epoch ended after two updates, so its weights are also those of best.safetensors.
    assert [name for name in names(died) if "step" in name] == [
        "step-1",
        "step-2",
        "step-2.safetensors",
        "step-3",
    ]


@pytest.mark.slow
def test_accelerate_launch_reads_the_configuration_file(tmp_path):
    write_recipes(tmp_path)
    succeed(
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(ONE_MACHINE)),
        *(
            "--num_processes",
            "2",
            "-m",
            "cudt",
            "train",
            "--recipe",
            str(tmp_path / "tied" / "tiny-alpaca.yaml"),
        ),
        *("--device", "cpu", "--data-root", str(tmp_path / "tied"), "--set", "training.epochs=1"),
        *("--out", str(tmp_path / "out")),
    )
    info = the_run(tmp_path / "out").info()
    assert (info.status, info.processes, info.sharded) == ("finished", 2, True)
