"""Keep two sweeps from using the same studies at once, even from different machines."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError

#: Seconds between heartbeats, and without a heartbeat until a sweep counts as dead.
_INTERVAL, _TIMEOUT = 15.0, 90.0


class Keeper:
    """A lock with a heartbeat, stored in a study; the lock of a dead process is taken over."""

    def __init__(self, study: ArmStudy) -> None:
        self._study = study.study
        self._last = 0.0

    def __enter__(self) -> Keeper:
        other = self._study.user_attrs.get("keeper")
        if other is not None and _is_alive(other):
            raise UserError(
                f"another `cudt sweep` is using this sweep's studies (process {other['process']} on "
                f"{other['host']}); wait until it finishes, or stop it first"
            )
        self.beat()
        return self

    def __exit__(self, *exception: object) -> None:
        self._study.set_user_attr("keeper", None)

    def beat(self) -> None:
        """Write a heartbeat if the last one is old enough."""
        if time.monotonic() - self._last > _INTERVAL or not self._last:
            self._last = time.monotonic()
            me = {"host": socket.gethostname(), "process": os.getpid(), "seen": time.time()}
            self._study.set_user_attr("keeper", me)


def _is_alive(keeper: dict[str, Any]) -> bool:
    if time.time() - keeper["seen"] > _TIMEOUT:
        return False
    if keeper["host"] != socket.gethostname():
        return True
    if keeper["process"] == os.getpid():
        # A restarted container has the same host name and process ids.
        return False
    try:
        os.kill(keeper["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
