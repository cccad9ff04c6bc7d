"""Run one bench in this process and write its outcomes as JSON: `python -m benchmarks.speed.child
NAME FILE`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed import bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-root", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cudt-bench-") as folder:
        setting = bench.Setting(given.data_root, Path(folder))
        found: dict[str, Any]
        try:
            found = {
                "outcomes": [
                    dataclasses.asdict(one) for one in bench.load(given.name).measure(setting)
                ]
            }
        except bench.SkippedError as error:
            found = {"skipped": str(error)}
    given.file.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
