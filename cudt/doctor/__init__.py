"""`cudt doctor`: whether this installation, this machine and these runs are in order.

Every check is a file of this folder that holds `CHECK`; diagnosis.py has the contract.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from cudt.doctor.diagnosis import Check, Diagnosis, reason_of
from cudt.doctor.scope import Scope
from cudt.utils.errors import UserError

__all__ = ["Check", "Diagnosis", "Scope", "checks", "examine"]


def checks() -> list[Check]:
    """All checks, in their order."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return sorted((module.CHECK for module in modules if hasattr(module, "CHECK")), key=lambda check: check.order)


def examine(scope: Scope) -> Iterator[tuple[Check, list[Diagnosis]]]:
    """Every check with what it found, one after the other."""
    for check in checks():
        yield check, _found(check, scope)


def _found(check: Check, scope: Scope) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    try:
        found += check.run(scope)
    except UserError as error:
        found.append(Diagnosis("problem", str(error)))
    except Exception as error:  # the patient may lack what a check imports, and the other checks go on
        advice = "fix what the other lines name, and repeat"
        found.append(Diagnosis("problem", f"could not be checked: {reason_of(error)}", advice))
    return found
