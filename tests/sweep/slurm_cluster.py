"""Commands of Slurm that record what they are asked; the test itself starts the jobs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

JOB = "4242"
#: `sbatch FILE` keeps the file; `srun OPTIONS COMMAND` runs the command with the options' output.
_COMMANDS = {
    "sbatch": """
        cp "$1" $CLUSTER/submission.sh
        echo "$CUDT_STORAGE" > $CLUSTER/storage
        echo "Submitted batch job 4242"
        """,
    "srun": """
        while [[ $1 == -* ]]; do
            case $1 in
                --output) out=$2; shift 2;;
                --error) err=$2; shift 2;;
                *) echo "$1" >> $CLUSTER/srun; shift;;
            esac
        done
        name() { sed "s/%A/4242/; s/%j/4242/; s/%a/$SLURM_ARRAY_TASK_ID/; s/%t/0/" <<< "$1"; }
        exec "$@" >> "$(name "$out")" 2>> "$(name "$err")"
        """,
    # Asked for the number of an array, Slurm lists all its jobs.
    "squeue": '[[ -z $SLURM_ARRAY_JOB_ID || " $* " == *" 4242_"* ]] && cat $CLUSTER/state || cat $CLUSTER/state{,}',
    "scontrol": 'echo "$@" >> $CLUSTER/scontrol',
}


class Cluster:
    """A cluster without a scheduler."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir(parents=True)
        for name, script in _COMMANDS.items():
            path = commands / name
            path.write_text(f"#!/bin/bash\n{script}\n")
            path.chmod(0o755)
        self.say_state("RUNNING")
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        monkeypatch.setenv("CLUSTER", str(folder))

    def say_state(self, state: str) -> None:
        """The state of every job from now on, as `squeue` prints it."""
        (self.folder / "state").write_text(f"{state}\n")

    def submission(self) -> str:
        """The batch script that was submitted last."""
        return (self.folder / "submission.sh").read_text()

    @property
    def has_jobs(self) -> bool:
        return (self.folder / "submission.sh").is_file()

    def storage(self) -> str:
        """CUDT_STORAGE in the environment of `sbatch`, which jobs inherit."""
        return (self.folder / "storage").read_text().strip()

    def requeued(self) -> list[str]:
        """The requests that jobs sent to `scontrol`."""
        asked = self.folder / "scontrol"
        return asked.read_text().splitlines() if asked.is_file() else []

    def start(self, index: int = 0, *, is_array: bool = True) -> subprocess.Popen[bytes]:
        """Start a job of the array; its process leads a process group of its own."""
        array = {"SLURM_ARRAY_JOB_ID": JOB, "SLURM_ARRAY_TASK_ID": str(index)} if is_array else {}
        environment = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "n1", **array}
        # Without `exec`, signals would reach the shell alone; Slurm sends them to the task.
        script = self.submission().replace("\nsrun ", "\nexec srun ")
        return subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True)
