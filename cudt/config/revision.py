"""A version of a model or dataset on the Hugging Face hub: a branch, a tag or the hash of a
commit.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from cudt.utils.shown import shown

_NAME = re.compile(r"[\w.][\w./-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str) -> bool:
    """Whether a revision is the full hash of a commit, which never changes; a branch or a tag
    can.
    """
    return _COMMIT.fullmatch(revision) is not None


def _checked(revision: str) -> str:
    # It becomes part of a path in the hub's cache.
    if not _NAME.fullmatch(revision) or ".." in revision:
        raise ValueError(f"expected a branch, a tag or the hash of a commit, got {shown(revision)}")
    return revision


Revision = Annotated[str, AfterValidator(_checked)]
