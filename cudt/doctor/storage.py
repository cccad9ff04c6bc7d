"""The database of sweeps, if CUDT_STORAGE names one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope

#: Seconds to wait for a server.
_PATIENCE = 5.0


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Whether the database answers; its password is never shown."""
    url = os.environ.get("CUDT_STORAGE")
    if not url:
        yield Diagnosis("ok", "sweeps have an SQLite file in their own folder (CUDT_STORAGE is not set)")
        return
    from cudt.sweep.storage import without_password

    where = without_password(url)
    answers: list[Diagnosis] = []
    # In a thread, because a server that is off gives no answer for minutes.
    thread = threading.Thread(target=lambda: answers.append(_ask(url, where)), daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    silent = Diagnosis(
        "problem",
        f"{where}: no answer within {_PATIENCE:.0f} seconds",
        "start the database server, or check host, port and firewall",
    )
    yield answers[0] if answers else silent


def _ask(url: str, where: str) -> Diagnosis:
    from cudt.sweep.storage import has_studies
    from cudt.utils.errors import MachineFaultError, UserError

    try:
        begun = has_studies(url)
    except (UserError, MachineFaultError) as error:
        is_driver = "No module named" in str(error)
        install = "`pip install 'cudt[postgres]'` installs the driver of PostgreSQL"
        return Diagnosis("problem", str(error), install if is_driver else "correct CUDT_STORAGE, or start the server")
    return Diagnosis("ok", f"{where} answers; it has {'sweeps' if begun else 'no sweep yet'}")


CHECK = Check("Storage", 60, check)
