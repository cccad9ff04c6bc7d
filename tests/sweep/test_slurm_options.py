from __future__ import annotations

import pytest

from cudt.sweep.slurm_options import SlurmOptions, parse_minutes, parse_slurm
from cudt.utils.errors import UserError


def test_options_are_sbatchs_long_ones():
    options = parse_slurm("partition=gpu,gpus=a100:1,mem=32G,time=08:00:00,cpus-per-task=8,array-parallelism=4")
    others = {"partition": "gpu", "gpus": "a100:1", "mem": "32G", "cpus-per-task": "8"}
    assert options == SlurmOptions(minutes=480, parallelism=4, others=others)


def test_a_value_may_be_a_list_and_a_key_may_look_like_on_the_command_line():
    options = parse_slurm("exclude=n1,n2, --cpus_per_task=2,time=30,gres=gpu:1,tmp:5")
    assert options.others == {"exclude": "n1,n2", "cpus-per-task": "2", "gres": "gpu:1,tmp:5"}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:30", 91),
        ("08:00:00", 480),
        ("0:00:01", 1),
        ("2-12", 60 * 60),
        ("1-00:30", 24 * 60 + 30),
        ("1-02:03:04", 26 * 60 + 4),
        ("0", None),
        ("8h", None),
        ("1:2:3:4", None),
        ("", None),
        ("unlimited", None),
    ],
)
def test_times_are_those_of_sbatch_in_minutes(text, minutes):
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("partiton=gpu,time=10", "unknown key 'partiton'; did you mean 'partition'?"),
        ("frobnicate=gpu,time=10", "unknown key 'frobnicate'; expected one of account, array-parallelism,"),
        ("partition=gpu", "time is missing: the time limit of a job, for example time=08:00:00"),
        ("time=8h", "time: expected minutes or [DAYS-]HH:MM:SS, at least 10 minutes"),
        ("time=8:59", "time: expected minutes or [DAYS-]HH:MM:SS, at least 10 minutes"),
        ("time=10,mem=32X", "mem: expected a size such as 32G (without a unit: megabytes), got '32X'"),
        ("time=10,gpus=one", "gpus: expected a number of GPUs such as 1 or a100:1, got 'one'"),
        ("time=10,cpus-per-task=0", "cpus-per-task: expected a positive integer, got '0'"),
        ("time=10,qos=", "qos: expected a value, got ''"),
        ("time=10,time=20", "time: given twice"),
        ("time=10,requeue", "expected KEY=VALUE, got 'requeue'"),
        ("time=10,array=0-7", "array: cannot be set; --workers is the number of jobs"),
        ("time=10,nodes=2", "nodes: cannot be set; each job is one worker on one node"),
    ],
)
def test_what_sbatch_would_refuse_is_refused_before(text, problem):
    with pytest.raises(UserError) as refused:
        parse_slurm(text)
    assert str(refused.value).startswith(f"--slurm: {problem}")


def test_all_errors_are_reported_together():
    with pytest.raises(UserError, match=r"^--slurm: unknown key 'qas'; did you mean 'qos'\?; time: expected .*'x'$"):
        parse_slurm("qas=high,time=x")
