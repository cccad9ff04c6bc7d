"""A real Slurm cluster of one node on 127.0.0.1, for tests; it leaves nothing behind.

with slurm_cluster(folder):
    subprocess.run(["sbatch", "job.sh"])
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
#: Four jobs of one core run at a time, however many cores the machine has.
_CONFIGURATION = """
ClusterName=cudt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=20
MpiDefault=none
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=node1 Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[None]:
    """A running cluster, which `sbatch` and the others find by SLURM_CONF; skips the test where it cannot run."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)} missing): apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a node of Slurm runs only as root")
    for name in ("state", "spool", "log"):
        (folder / name).mkdir(parents=True)
    values = {"host": socket.gethostname(), "controller_port": _free_port(), "node_port": _free_port()}
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, **values))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "log/munge"}
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        stack.enter_context(_daemon(folder, "munged", "--foreground", "--force", *munge, f"--seed-file={folder}/seed"))
        until((folder / "munge.socket").exists)
        stack.enter_context(_daemon(folder, "slurmctld", "-D"))
        stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", "node1"))
        until(lambda: output("sinfo", "--noheader", "--format=%T") == "idle")
        try:
            yield
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)
            until(lambda: not output("squeue", "--noheader"))


def output(*command: str) -> str:
    """What a command prints, without the last line break."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def until(is_so: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is so; an error after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


@contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[None]:
    with (folder / "log" / f"{command[0]}.out").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
