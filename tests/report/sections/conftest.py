"""Sections are texts and tables: their reports have no figures."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_figures(no_figures: None) -> None: ...
