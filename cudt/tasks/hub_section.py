"""Shared by the tasks whose data can come from the Hugging Face hub: the key of a recipe that says
which version.
"""

from __future__ import annotations

from cudt.config.revision import Revision
from cudt.config.schema import NamedSection


class HubDataSection(NamedSection):
    """The `task` section of tasks with data of the hub."""

    revision: Revision | None = None
    """Version of the dataset on the hub: a branch, a tag or the hash of a commit; null for the
    newest. Refused for data in files, which have no versions."""
