from __future__ import annotations

import numpy as np
import pytest
from filelock import FileLock

from cudt.data import frame_cache, token_cache
from cudt.doctor import cache
from tests.doctor.conftest import bad, found, scope
from tests.frame_caches import SIZE, kept, right, three_clips


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))


def fix_all() -> list[str]:
    return [one.fix() for one in bad(cache.CHECK, scope()) if one.fix is not None]


def test_an_empty_cache_is_in_order():
    assert [one.severity for one in found(cache.CHECK, scope())] == ["ok"]


def test_damaged_clips_are_deleted_and_decoded_again_and_good_ones_stay(tmp_path):
    sources = three_clips(tmp_path / "clips")
    frame_cache.prepare(sources, SIZE, "clips")
    assert not bad(cache.CHECK, scope())
    good, flipped, cut = (frame_cache.folder() / f"{frame_cache.key(clip, SIZE)}.frames" for clip in sources)
    before = kept(frame_cache.folder())
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    cut.with_suffix(".json").write_text("{")
    (one,) = bad(cache.CHECK, scope())
    assert "2 of 3 decoded clips are damaged, incomplete" in one.title
    assert fix_all() == ["deleted 2 clips"]
    assert fix_all() == []
    assert {path.name for path in frame_cache.folder().iterdir() if path.suffix != ".lock"} == {
        good.name,
        good.with_suffix(".json").name,
    }
    assert right(frame_cache.prepare(sources, SIZE, "clips"), sources)
    assert kept(frame_cache.folder()) == before


def test_a_clip_that_another_process_decodes_is_left_alone(tmp_path):
    sources = three_clips(tmp_path / "clips")
    frame_cache.prepare(sources, SIZE, "clips")
    name = frame_cache.key(sources[0], SIZE)
    (frame_cache.folder() / f"{name}.json").unlink()
    with FileLock(frame_cache.folder() / f"{name}.lock"):
        assert not bad(cache.CHECK, scope())
    assert bad(cache.CHECK, scope())


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.99])
def test_damaged_tokens_are_deleted(at):
    token_cache.folder().mkdir(parents=True)
    for name in ("good", "bad"):
        np.savez(token_cache.folder() / f"{name}.npz", tokens=np.arange(1000))
    assert not bad(cache.CHECK, scope())
    content = (token_cache.folder() / "bad.npz").read_bytes()
    (token_cache.folder() / "bad.npz").write_bytes(content[: int(at * len(content))])
    assert fix_all() == ["deleted 1 files"]
    assert [path.name for path in token_cache.folder().iterdir()] == ["good.npz"]
    assert fix_all() == []
