"""The runs of a sweep in trackers: one group, whichever worker trains them."""

from __future__ import annotations

import pytest

from cudt.sweep import slurm
from cudt.sweep.run_sweep import SweepOptions, resume_command
from cudt.sweep.slurm_options import parse_slurm
from tests.sweep.searches import sweep_of, write_search


def assert_grouped(tmp_path, out) -> None:
    from cudt.runs.find import find_runs, open_run

    sweep = sweep_of(tmp_path)
    group = out / "trackers" / f"{sweep.name}-{sweep.identity()}"
    runs = [open_run(path) for path in find_runs([out])]
    assert {path.name for path in group.iterdir()} == {run.path.name for run in runs}
    assert len(runs) == 3
    assert len([*group.glob("*/reviews-ut/events.*")]) == 3


def test_the_runs_of_a_sweep_are_a_group(command, no_processes, tmp_path):
    code, _, errors = command("sweep", "--search", write_search(tmp_path), "--track", "tensorboard", "--device", "cpu")
    assert (code, errors) == (0, "")
    assert_grouped(tmp_path, tmp_path / "outputs")


@pytest.mark.slow
def test_the_option_reaches_worker_processes(command, tmp_path):
    options = ("--track", "tensorboard", "--workers", "2", "--device", "cpu")
    code, _, errors = command("sweep", "--search", write_search(tmp_path), *options)
    assert (code, errors) == (0, "")
    assert_grouped(tmp_path, tmp_path / "outputs")


def test_a_tracker_that_is_missing_is_refused_before_the_sweep_begins(command, tmp_path):
    code, _, errors = command("sweep", "--search", write_search(tmp_path), "--track", "tensorbord")
    assert code == 2
    assert errors.startswith("error: --track tensorbord: unknown tracker; did you mean 'tensorboard'?")
    assert not (tmp_path / "outputs").exists()


def test_the_command_that_resumes_and_the_jobs_of_a_cluster_track_too(tmp_path, monkeypatch):
    options = SweepOptions(tmp_path, "cpu", storage="postgresql://db/trials", trackers=("tensorboard", "wandb"))
    assert resume_command(tmp_path, options).endswith(" --track tensorboard,wandb")
    submitted: list[list[str]] = []
    monkeypatch.setattr(slurm, "check_cluster", lambda storage: None)
    monkeypatch.setattr("cudt.sweep.run_sweep.begin", lambda sweep, options: [])
    monkeypatch.setattr(slurm, "submit", lambda command, *more: submitted.append([*command]))
    sweep = sweep_of(tmp_path)
    slurm.launch(sweep, options, parse_slurm("time=60"))
    ((_, *words),) = submitted
    name = sweep.folder(tmp_path).name
    assert words[2:8] == ["sweep", "--join", "--search", name, "--track", "tensorboard,wandb"]
