"""Runs the Python lines of model cards as their reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

#: Without cudt, and with what `pip install cudt` installs, which is not torchvision. `lines_of` are
#: those of the card in the current folder; `given` is what the test gave.
_BEFORE = """
import json, os, re, sys

for name in ("cudt", "torchvision"):
    sys.modules[name] = None  # import fails, as if it were not installed
import torch

given = json.load(sys.stdin)

def lines_of():
    (lines,) = re.findall("```python\\n(.*?)```", open("model/README.md", encoding="utf-8").read(), re.S)
    return lines

found = {}
"""
_AFTER = """
print(json.dumps(found))
"""


def read_cards(code: str, *given: Any) -> dict[str, Any]:
    """What `code` puts into `found`, in a Python that never heard of cudt; `log` is all that it
    printed."""
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + code + _AFTER],
        input=json.dumps(given),
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "log": done.stdout + done.stderr}
