"""`cudt reproduce` as a user runs it: the whole smoke scale, killed once and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def stamps(out: Path) -> dict[str, int]:
    """The times at which runs were trained and evaluated, and instructions answered."""
    patterns = ("best.safetensors", "examples.parquet", "questions*tokens12.json")
    found = [path for pattern in patterns for path in out.glob(f"*/*/**/{pattern}")]
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_the_smoke_scale_killed_halfway_and_repeated_does_nothing_twice(tmp_path):
    out = tmp_path / "out"
    words = ["reproduce", "--scale", "smoke", "--workers", "2", "--out", str(out)]
    command = [sys.executable, "-m", "cudt", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"}
    killed = subprocess.Popen(command, env=environment)
    while len(list(out.glob("*/*/examples.parquet"))) < 10:
        assert killed.poll() is None
        time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # Workers end by themselves, and may finish their job.
    time.sleep(10)
    done = stamps(out)
    again = subprocess.run(command, env=environment, timeout=1200, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(" done ") == 9
    after = stamps(out)
    assert {path: after[path] for path in done} == done
    assert len(after) > len(done)
    figure = "smoke-text-gaussian-descent-and-robustness.png"
    assert (out / "report" / "figures" / figure).is_file()
