from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import cudt.evaluation.display, cudt.evaluation.evaluate, cudt.evaluation.generate, cudt.cli.eval_ood
print(sorted(name for name in sys.modules if name.startswith(("cudt.report", "cudt.sweep", "optuna", "plotly"))))
"""
RUN = "import sys, cudt.runs.find; print('torch' in sys.modules)"


def printed(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_an_evaluation_does_not_import_the_report():
    assert printed(CODE) == "[]"


def test_reading_run_folders_does_not_import_torch():
    assert printed(RUN) == "False"
