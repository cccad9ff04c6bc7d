"""One sweep at a time on the same studies, wherever it runs."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError

#: Seconds between signs of life, and after which there is none.
_BEAT, _SILENCE = 15.0, 90.0


class Keeper:
    """Keeps a second `cudt sweep` off the same studies, wherever it runs; a dead one's place can be taken."""

    def __init__(self, study: ArmStudy) -> None:
        self._study = study.study
        self._last = 0.0

    def __enter__(self) -> Keeper:
        other = self._study.user_attrs.get("keeper")
        if other is not None and _is_alive(other):
            raise UserError(
                f"another `cudt sweep` is at work on this sweep's studies (process {other['process']} on "
                f"{other['host']}); let it finish, or end it first"
            )
        self.beat()
        return self

    def __exit__(self, *exception: object) -> None:
        self._study.set_user_attr("keeper", None)

    def beat(self) -> None:
        """Say that we are alive, every now and then."""
        if time.monotonic() - self._last > _BEAT or not self._last:
            self._last = time.monotonic()
            me = {"host": socket.gethostname(), "process": os.getpid(), "seen": time.time()}
            self._study.set_user_attr("keeper", me)


def _is_alive(keeper: dict[str, Any]) -> bool:
    if time.time() - keeper["seen"] > _SILENCE:
        return False
    if keeper["host"] != socket.gethostname():
        return True
    if keeper["process"] == os.getpid():
        # A container that is started again has the same name and numbers.
        return False
    try:
        os.kill(keeper["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
