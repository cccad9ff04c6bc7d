"""best.safetensors of a run that resumes: it must have the weights of the best epoch that the checkpoint knows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

from cudt.runs.checksums import digests, record_existing, replacing_checked
from cudt.runs.run import Run
from cudt.training.checkpoint_file import unreadable
from cudt.utils.errors import DataWarning
from cudt.utils.files import digest_of, link_or_copy

Found = Literal["kept", "to be chosen again", "lost"]


def digest_now(path: Path) -> str | None:
    """The SHA-256 of a file; None if it is missing or on a bad sector."""
    try:
        return digest_of(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        unreadable(error)
        return None


def settled(run: Run, sha256: str, step: int) -> Found:
    """Let best.safetensors be the file with this digest, if a file of weights has it.

    Otherwise the weights of the best epoch are lost, unless those on disk are of the checkpoint's own update `step`:
    training ended between choosing them and saving that, and the validation that chose them is repeated.
    """
    file = run.weights_file("best")
    name = str(file.relative_to(run.path))
    now, known = digest_now(file), digests(run.path, name)
    if now == sha256:
        if sha256 not in known:
            record_existing(run.path, name)
        return "kept"
    sources = run.checkpoints.glob("step-*.safetensors")
    source = next((one for one in sorted(sources) if digest_now(one) == sha256), None)
    if source is None:
        own = digest_now(run.checkpoints / f"step-{step}.safetensors")
        return "to be chosen again" if now is not None and now == own else "lost"
    if now not in known:
        warnings.warn(f"{file}: damaged; restored from {source.name}", DataWarning, stacklevel=2)
    with replacing_checked(run.path, name) as temporary:
        link_or_copy(source, temporary)
    return "kept"
