"""Look for known vulnerabilities of the pinned packages: pip-audit over requirements/, for the Python that runs it.

    python scripts/audit.py

Asks OSV (PIP_AUDIT_OSV_URL names another server of its interface), and skips if it does not answer, or no longer:
five seconds for each question.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "requirements"
SECONDS = 5

#: How pip-audit's errors begin if the database does not answer; they are tracebacks or advice about the network.
NO_ANSWER = re.compile(
    r"^pip_audit\._service\.\S*Error|^requests\.exceptions\.|^urllib3\.exceptions\.|vulnerability feed", re.M
)

#: Vulnerabilities that do not concern cudt: the identifier, and why not.
ACCEPTED: dict[str, str] = {}


def main() -> int:
    from pip_audit._service.osv import OsvService

    server = os.environ.get("PIP_AUDIT_OSV_URL", OsvService.DEFAULT_OSV_URL)
    if not _answers(server):
        print("no vulnerability database can be reached: skipped")
        return 0
    options = ["--vulnerability-service=osv", f"--osv-url={server}", "--disable-pip", "--progress-spinner=off"]
    # The CPU build of torch has the version of PyPI's, as far as a database is concerned.
    files = [f"--requirement={path}" for path in sorted(FOLDER.glob("*.txt")) if path.stem != "cpu"]
    accepted = [f"--ignore-vuln={identifier}" for identifier in ACCEPTED]
    command = [sys.executable, "-m", "pip_audit", *options, f"--timeout={SECONDS}", *accepted, *files]
    return _run(command)


def _run(command: list[str]) -> int:
    """Print what pip-audit finds, and return its exit code, which is 1 for findings as for a busy database."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.txt"
        done = subprocess.run([*command, f"--output={found}"], stderr=subprocess.PIPE, text=True)
        if done.returncode and not found.exists() and NO_ANSWER.search(done.stderr):
            print("the vulnerability database stopped answering: skipped")
            return 0
        sys.stderr.write(done.stderr)
        print(found.read_text() if found.exists() else "", end="", flush=True)
    return done.returncode


def _answers(server: str) -> bool:
    """Whether a server knows OSV's interface."""
    question = json.dumps({"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "9.0.0"}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server, question), timeout=SECONDS) as answer:
            return isinstance(json.load(answer), dict)
    except (OSError, ValueError, http.client.HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(main())
