"""Files of run folders as tests plant them."""

from __future__ import annotations

import json
from typing import Any

from cudt.runs.checksums import forget
from cudt.runs.run import Run


def raw_info(run: Run) -> dict[str, Any]:
    """The values of run.json as they are in the file."""
    return json.loads((run.path / "run.json").read_text(encoding="utf-8"))


def plant_info(run: Run, **values: Any) -> None:
    """Write values into run.json without any check, so that a test can damage it."""
    file = run.path / "run.json"
    forget(run.path, "run.json")
    before = raw_info(run) if file.is_file() else {}
    file.write_text(json.dumps({**before, **values}), encoding="utf-8")


def without_checksums(run: Run) -> None:
    """Remove the checksums of a run, so that a test may change its files."""
    (run.path / "checksums.json").unlink(missing_ok=True)
