from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cudt.runs import checksums
from cudt.runs.checksums import (
    FILE,
    check_file,
    check_given,
    damaged_files,
    forget,
    is_lost,
    read_checked,
    record_existing,
    recorded,
    write_checked,
)
from cudt.utils.errors import DamagedFileError, UserError

A, B = b"perturbation,value\ngaussian,0.5\n", b"perturbation,value\ngaussian,0.25\n"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entries(folder: Path) -> dict[str, list[str | None]]:
    return json.loads((folder / FILE).read_bytes())["files"]


class Killed(BaseException):
    """What ends a writer in the middle."""


def test_file_has_the_documented_format(tmp_path: Path) -> None:
    write_checked(tmp_path, "ood.csv", A)
    write_checked(tmp_path, "samples/é.png", B)
    values = json.loads((tmp_path / FILE).read_bytes())
    wanted = {"ood.csv": [sha(A)], "samples/é.png": [sha(B)]}
    canonical = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    assert values == {"format": 1, "files": wanted, "sha256": sha(canonical.encode())}
    assert read_checked(tmp_path, "ood.csv") == A
    check_file(tmp_path, "samples/é.png")
    assert recorded(tmp_path) == ["ood.csv", "samples/é.png"]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    write_checked(tmp_path, "ood.csv", A)
    for place in range(len(A)):
        (tmp_path / "ood.csv").write_bytes(A[:place] + bytes([A[place] ^ 1]) + A[place + 1 :])
        for read in (read_checked, check_file):
            with pytest.raises(DamagedFileError, match=r"ood\.csv: damaged .*delete it"):
                read(tmp_path, "ood.csv")
    (tmp_path / "ood.csv").write_bytes(A)
    assert read_checked(tmp_path, "ood.csv") == A


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_checked(tmp_path, "ood.csv")
    write_checked(tmp_path, "ood.csv", A)
    (tmp_path / "ood.csv").unlink()
    assert is_lost(tmp_path, "ood.csv")
    for read in (read_checked, check_file):
        with pytest.raises(DamagedFileError, match="missing"):
            read(tmp_path, "ood.csv")
    assert [str(error.path.name) for error in damaged_files(tmp_path)] == ["ood.csv"]
    write_checked(tmp_path, "ood.csv", B)
    assert not is_lost(tmp_path, "ood.csv")
    assert read_checked(tmp_path, "ood.csv") == B


def test_files_without_a_checksum_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "ood.csv").write_bytes(A)
    assert read_checked(tmp_path, "ood.csv") == A
    write_checked(tmp_path, "layers.csv", B)
    assert read_checked(tmp_path, "ood.csv") == A
    record_existing(tmp_path, "ood.csv")
    assert entries(tmp_path)["ood.csv"] == [sha(A)]
    forget(tmp_path, "ood.csv")
    (tmp_path / "ood.csv").write_bytes(B)
    assert read_checked(tmp_path, "ood.csv") == B
    assert recorded(tmp_path) == ["layers.csv"]


@pytest.mark.parametrize("before", [None, A], ids=["first", "later"])
@pytest.mark.parametrize("moment", ["announce", "replace", "settle"])
def test_killed_writer_leaves_a_readable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, moment: str
) -> None:
    """A writer is killed after each of its three renames: the old or the new content is
    accepted."""
    if before is not None:
        write_checked(tmp_path, "ood.csv", before)
    left = {"announce": 0, "replace": 1, "settle": 2}[moment]
    rename = Path.replace
    done: list[Path] = []

    def killed_at(source: Path, target: Path) -> Path:
        result = rename(source, target)
        done.append(target)
        if len(done) == left + 1:
            raise Killed
        return result

    monkeypatch.setattr(Path, "replace", killed_at)
    with pytest.raises(Killed):
        write_checked(tmp_path, "ood.csv", B)
    monkeypatch.undo()
    assert damaged_files(tmp_path) == []
    is_new = left >= 1
    if before is None and not is_new:
        with pytest.raises(FileNotFoundError):
            read_checked(tmp_path, "ood.csv")
        assert not is_lost(tmp_path, "ood.csv")
    else:
        assert read_checked(tmp_path, "ood.csv") == (B if is_new else before)
    # The next writer finishes what the killed one began.
    write_checked(tmp_path, "ood.csv", A)
    assert entries(tmp_path) == {"ood.csv": [sha(A)]}


def test_own_damage_is_noticed(tmp_path: Path) -> None:
    """Every byte of checksums.json changed: an error about it, or the same digests as before."""
    write_checked(tmp_path, "ood.csv", A)
    content, noticed = (tmp_path / FILE).read_bytes(), 0
    for place in range(len(content)):
        for bit in (1, 32, 128):
            (tmp_path / FILE).write_bytes(
                content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
            )
            try:
                assert read_checked(tmp_path, "ood.csv") == A
                assert entries(tmp_path) == {"ood.csv": [sha(A)]}
            except UserError:
                noticed += 1
    assert noticed > 2 * len(content)
    for size in range(len(content) - 1):
        (tmp_path / FILE).write_bytes(content[:size])
        with pytest.raises(DamagedFileError, match=f"{FILE}: damaged .*restore it, or delete it"):
            read_checked(tmp_path, "ood.csv")
        with pytest.raises(DamagedFileError, match=FILE):
            write_checked(tmp_path, "ood.csv", B)
    assert (tmp_path / "ood.csv").read_bytes() == A
    assert [error.path.name for error in damaged_files(tmp_path)] == [FILE]


@pytest.mark.parametrize(
    ("accepted", "content", "settled"),
    [
        ([sha(A), sha(B)], A, [sha(A)]),
        ([sha(A), sha(B)], B, [sha(B)]),
        ([None, sha(A)], A, [sha(A)]),
        ([None, sha(A)], None, None),
        ([sha(A), sha(B)], b"changed", [sha(A), sha(B)]),
    ],
)
def test_what_a_killed_writer_announced_is_settled(
    tmp_path: Path, accepted, content, settled
) -> None:
    write_checked(tmp_path, "other", A)
    checksums._write_records(tmp_path, {"ood.csv": tuple(accepted)})
    if content is not None:
        (tmp_path / "ood.csv").write_bytes(content)
    checksums.settle(tmp_path)
    assert entries(tmp_path).get("ood.csv") == settled
    assert entries(tmp_path)["other"] == [sha(A)]


@pytest.mark.parametrize(
    "files",
    [
        {"../outside.csv": ["0"]},
        {"samples/../../outside.png": ["0"]},
        {"/dev/zero": ["0"]},
        {"ood.csv": "0"},
        ["ood.csv"],
    ],
)
def test_names_that_lead_out_of_the_folder_and_other_kinds_of_values_are_damage(tmp_path, files):
    own = sha(json.dumps(files, sort_keys=True, separators=(",", ":")).encode())
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "files": files, "sha256": own}))
    with pytest.raises(DamagedFileError, match="not a list of checksums"):
        read_checked(tmp_path, "ood.csv")
    assert len(damaged_files(tmp_path)) == 1


# ---------------------------------------------------------------- what is not damage, and what to
# do about a change


def test_a_changed_recipe_of_a_run_is_refused(tmp_path):
    write_checked(tmp_path, "recipe.yaml", b"seed: 1\n")
    check_given(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("seed: 2\n")
    with pytest.raises(
        DamagedFileError, match=r"recipe\.yaml: damaged .*copy it to another folder"
    ):
        check_given(tmp_path / "recipe.yaml")
