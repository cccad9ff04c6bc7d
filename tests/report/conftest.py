from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _nothing_has_to_outlive_a_power_cut():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield
