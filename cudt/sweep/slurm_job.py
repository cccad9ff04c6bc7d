"""What a Slurm job of a sweep runs: a worker, which is saved and requeued when Slurm stops the job early.

Slurm stops a job in three ways. Before the time limit it sends the signal that submitit asks for. On pre-emption it
sends SIGTERM, and the job is still running until the partition's grace period is over. On `scancel` and `scontrol
requeue` it sends SIGTERM too, but by then the job is over for Slurm. In the first two cases the worker saves its run,
and the job goes back to the queue; in the last one it only saves.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

#: Seconds before the time limit when Slurm asks a job to stop.
NOTICE = 180
#: Seconds that a worker has to save its run; the rest of the notice is for giving the job back to the queue.
_SAVING = 150
#: The exit codes of a command that was interrupted (by Ctrl-C, by SIGTERM) and can be resumed.
_INTERRUPTED = (130, 143)


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
        requeue, stop = signal.signal(notice, signal.SIG_IGN), _Stop()
        with subprocess.Popen(self.command) as worker:
            stop.begin(worker, notice)
            code = worker.wait()
        signal.alarm(0)
        # SLURM_JOB_ID would not do: for one job of an array, it is the number of the whole array.
        if stop.requested and (code in _INTERRUPTED or code < 0) and _is_running(submitit.JobEnvironment().job_id):
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

    def __init__(self) -> None:
        self.requested = False
        self._worker: subprocess.Popen[bytes] | None = None
        # Before the worker starts: submitit's handler would swallow a SIGTERM that comes meanwhile.
        signal.signal(signal.SIGTERM, self._pass_on)

    def begin(self, worker: subprocess.Popen[bytes], notice: int) -> None:
        """Pass on what was asked since this object was made, and what will be."""
        self._worker = worker
        signal.signal(signal.SIGALRM, lambda *_: worker.kill())
        signal.signal(notice, self._pass_on)
        if self.requested:
            self._terminate(worker)

    def _pass_on(self, *_: object) -> None:
        is_first, self.requested = not self.requested, True
        if is_first and self._worker is not None:
            self._terminate(self._worker)

    @staticmethod
    def _terminate(worker: subprocess.Popen[bytes]) -> None:
        signal.alarm(_SAVING)
        worker.terminate()


def _is_running(job: str) -> bool:
    """Whether Slurm still regards a job as running; one that was cancelled must not be requeued."""
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "RUNNING"
