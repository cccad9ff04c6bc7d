"""Workers of a sweep as jobs of a Slurm cluster, submitted through submitit."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudt.runs.options import RunOptions
from cudt.sweep import results, run_sweep
from cudt.sweep.definition import Sweep
from cudt.sweep.run_sweep import SweepOptions
from cudt.sweep.slurm_job import NOTICE, JobWorker
from cudt.sweep.slurm_options import SlurmOptions
from cudt.sweep.storage import backend_of, explain_storage_errors
from cudt.utils.errors import UserError

#: How often a job may reach its time limit; submitit needs a number, and there is no reason to stop before the sweep.
_MAX_TIME_LIMITS = 1000


@dataclass(frozen=True)
class SlurmArray:
    """Jobs that were submitted together."""

    job_id: str
    n_jobs: int
    logs: Path

    def summary(self) -> str:
        """Where the jobs log, how to watch them and how to stop them."""
        jobs = "1 worker as job" if self.n_jobs == 1 else f"{self.n_jobs} workers as job array"
        return "\n".join(
            (
                f"submitted {jobs} {self.job_id}",
                f"  logs   {self.logs}/{self.job_id}_*_log.out, .err",
                f"  watch  squeue --jobs {self.job_id}",
                f"  stop   scancel {self.job_id}",
            )
        )


def launch(sweep: Sweep, options: SweepOptions, asked: SlurmOptions) -> SlurmArray:
    """Begin a sweep and submit workers that join it; whatever can be wrong is an error before."""
    check_cluster(options.storage)
    # The nodes may have devices that this machine does not have.
    run_sweep.check_score(sweep, run_sweep.first_task(sweep, replace(options, device="auto")))
    folder = sweep.folder(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    with explain_storage_errors():
        run_sweep.begin(sweep, options)
    results.write_definition(sweep, folder)
    words = ["sweep", "--join", "--search", folder.name]
    if options.trackers:
        words += ["--track", ",".join(options.trackers)]
    return submit_workers(words, options, options.storage, asked, folder, f"cudt-{sweep.name}")


def check_cluster(storage: str | None) -> None:
    """Refuse to submit where Slurm or submitit is missing, or to jobs that could not reach the storage."""
    if storage is None or backend_of(storage) == "sqlite":
        raise UserError(
            "--launcher slurm: the jobs need a database that all nodes reach, and an SQLite file is not safe on a "
            "shared folder; use --storage postgresql://USER@HOST/DATABASE (examples/cluster/postgres.sbatch starts one)"
        )
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("--launcher slurm: sbatch and srun are not on the path; run cudt on a login node")
    if importlib.util.find_spec("submitit") is None:
        raise UserError("--launcher slurm: submitit is missing; pip install 'cudt[slurm]'")


def submit_workers(
    words: Sequence[str], options: RunOptions, storage: str | None, asked: SlurmOptions, folder: Path, name: str
) -> SlurmArray:
    """Submit `cudt WORDS` with the options as an array of jobs with one worker each; logs are below `folder`."""
    from submitit.helpers import environment_variables

    command = [sys.executable, "-m", "cudt", *words, "--device", options.device, "--out", str(options.out.resolve())]
    if options.data_root is not None:
        command += ["--data-root", str(options.data_root.resolve())]
    # Not as an option: other users of a node can read command lines, and the URL may have a password.
    with environment_variables(CUDT_STORAGE=storage):
        return submit(command, options.workers, asked, folder / "logs" / "slurm", name)


def submit(command: Sequence[str], n_jobs: int, asked: SlurmOptions, logs: Path, name: str) -> SlurmArray:
    """Submit a command as an array of jobs, and return without waiting for them."""
    import submitit

    logs = logs.resolve()
    executor = submitit.SlurmExecutor(logs, max_num_timeout=_MAX_TIME_LIMITS)
    executor.update_parameters(**_parameters(asked, n_jobs, name))
    worker = JobWorker(tuple(command))
    try:
        with executor.batch():
            jobs = [executor.submit(worker) for _ in range(n_jobs)]
    except (RuntimeError, OSError) as error:  # submitit's own errors are RuntimeErrors
        raise UserError(f"sbatch refused the jobs: {_reason(error)}") from None
    return SlurmArray(jobs[0].job_id.partition("_")[0], n_jobs, logs)


def _reason(error: Exception) -> str:
    """What sbatch said about its errors, as one line."""
    _, *said = str(error).split("sbatch: error: ")
    return "; ".join(part.strip().splitlines()[0] for part in said if part.strip()) or str(error)


def _parameters(asked: SlurmOptions, n_jobs: int, name: str) -> dict[str, Any]:
    """The options as submitit's parameters."""
    # Since Slurm 22.05 a job's task does not inherit this option from its job.
    cores = asked.others.get("cpus-per-task")
    return {
        "job_name": asked.others.get("job-name", name),
        "time": asked.minutes,
        "signal_delay_s": NOTICE,
        "array_parallelism": asked.parallelism or n_jobs,
        "srun_args": [f"--cpus-per-task={cores}"] if cores else [],
        # submitit's own would be refused where such keys are checked.
        "wckey": None,
        # sbatch's names are submitit's with dashes, and it has more of them.
        "additional_parameters": {**_without(asked.others, "job-name"), "requeue": True},
    }


def _without(values: dict[str, str], key: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if name != key}
