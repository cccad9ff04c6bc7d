"""The data root of commands on a run that do not name one: that of its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.runs.run import Run
from cudt.utils.errors import UserError


@contextmanager
def data_root_of(run: Run, given: Path | None) -> Iterator[Path | None]:
    """The given folder; without one, that of the run's training, which may be relative to the run
    folder.

    If that does not exist any more, the default is used, since not every task needs a data root; an
    error inside the context then names the missing folder.
    """
    recorded = run.info().data_root
    if given is not None or recorded is None:
        yield given
    elif (run.path / recorded).is_dir():
        yield run.path / recorded
    else:
        try:
            yield None
        except UserError as error:
            raise UserError(
                f"{error}; '{run.path}' was trained with the data root '{recorded}', which does "
                "not exist any more: "
                "give --data-root"
            ) from None
