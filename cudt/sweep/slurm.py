"""Workers as jobs of a Slurm cluster: submit them through submitit, save and requeue them when Slurm stops them early.

Slurm stops a job in three ways. Before the time limit it sends the signal that submitit asks for. On pre-emption it
sends SIGTERM, and the job is still running until the partition's grace period is over. On `scancel` and `scontrol
requeue` it sends SIGTERM too, but by then the job is over for Slurm. In the first two cases the worker saves its run,
and the job goes back to the queue; in the last one it only saves.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.sweep.slurm_options import SlurmOptions
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

#: Seconds before the time limit when Slurm asks a job to stop.
_NOTICE = 180
#: Seconds that a worker has to save its run; the rest of the notice is for giving the job back to the queue.
_SAVING = 150
#: How often a job may reach its time limit; submitit needs a number, and there is no reason to stop before the sweep.
_MAX_TIME_LIMITS = 1000
#: The exit code of a command that was interrupted and can be resumed.
_INTERRUPTED = 130


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


def submit(command: Sequence[str], n_jobs: int, options: SlurmOptions, logs: Path, name: str) -> SlurmArray:
    """Submit a command that joins a sweep as an array of jobs, and return without waiting for them."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("--launcher slurm: sbatch and srun are not on the path; run cudt on a login node")
    try:
        import submitit
    except ImportError:
        raise UserError("--launcher slurm needs submitit: pip install 'cudt[slurm]'") from None
    logs = logs.resolve()
    executor = submitit.SlurmExecutor(logs, max_num_timeout=_MAX_TIME_LIMITS)
    executor.update_parameters(**_parameters(options, n_jobs, name))
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


def _parameters(options: SlurmOptions, n_jobs: int, name: str) -> dict[str, Any]:
    """The options as submitit's parameters."""
    # Since Slurm 22.05 a job's task does not inherit this option from its job.
    cores = options.others.get("cpus-per-task")
    return {
        "job_name": options.others.get("job-name", name),
        "time": options.minutes,
        "signal_delay_s": _NOTICE,
        "array_parallelism": options.parallelism or n_jobs,
        "srun_args": [f"--cpus-per-task={cores}"] if cores else [],
        # submitit's own would be refused where such keys are checked.
        "wckey": None,
        # sbatch's names are submitit's with dashes, and it has more of them.
        "additional_parameters": {**_without(options.others, "job-name"), "requeue": True},
    }


@dataclass(frozen=True)
class JobWorker:
    """What a job runs: a command in a process of its own, which is asked to stop when the job is."""

    command: tuple[str, ...]

    def __call__(self) -> None:
        """Run the command to its end; if it was interrupted because the job has to end, requeue the job."""
        import submitit

        notice = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        # Some clusters send the notice to every process of a job, and a process that does not know it would die. The
        # command and its children inherit that it is ignored.
        requeue = signal.signal(notice, signal.SIG_IGN)
        with subprocess.Popen(self.command) as worker:
            stop = _Stop(worker, (notice, signal.SIGTERM))
            code = worker.wait()
        signal.alarm(0)
        if stop.requested and (code == _INTERRUPTED or code < 0) and _is_running():
            # This is submitit's handler: it calls `checkpoint`, gives the job back to the queue, and exits.
            signal.signal(notice, requeue)
            signal.raise_signal(notice)
        if code:
            raise SystemExit(code)

    def checkpoint(self) -> DelayedSubmission:
        """What a requeued job runs: the same command, which joins again and resumes what is left."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Stop:
    """Asks the worker to stop when this process is asked to, and kills it if saving takes too long."""

    def __init__(self, worker: subprocess.Popen[bytes], signals: Sequence[int]) -> None:
        self.requested = False
        self._worker = worker
        for number in signals:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, lambda *_: worker.kill())

    def _pass_on(self, *_: object) -> None:
        if not self.requested:
            self.requested = True
            signal.alarm(_SAVING)
            self._worker.terminate()


def _is_running() -> bool:
    """Whether Slurm still regards this job as running; one that was cancelled must not be requeued."""
    command = ["squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format", "%T"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "RUNNING"


def _without(values: dict[str, str], key: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if name != key}
