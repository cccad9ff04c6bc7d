from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from pathlib import Path

import pytest

import cudt
from cudt.config import recipe as recipes
from cudt.config import strict_yaml
from cudt.doctor import Diagnosis, run_files, run_state, runs
from cudt.doctor.run_lock import held
from cudt.runs import checksums
from cudt.runs.info import RunInfo, read_info, write_info
from cudt.runs.run import Run
from cudt.utils.errors import DamagedFileError
from tests.doctor.conftest import bad, found, scope

#: What `eval-ood` writes again.
TABLES = ["ood.csv", "ratios.csv", "ratio_bins.csv", "constraints.csv", "descent.csv", "examples.parquet"]


def recorded(run: Path) -> None:
    """Record every file of a run as it is now."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in (".lock", checksums.FILE)]
    checksums.record_existing(run, *(path.relative_to(run).as_posix() for path in files))


@pytest.fixture(scope="module")
def evaluated(trained_run: Run, tmp_path_factory) -> Path:
    """A finished run that was evaluated at levels of its own."""
    path = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained_run.path, path)
    cudt.evaluate(cudt.open_run(path), gammas=[0, 0.25, 0.75], noise_seeds=[3])
    recorded(path)
    return path


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "outputs" / "recipe" / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def problems(folder: Path) -> list[Diagnosis]:
    return bad(runs.CHECK, scope(folder))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fixed(one: Diagnosis) -> str:
    assert one.fix is not None
    return one.fix()


def test_a_run_in_order_is_left_as_it_is(run, tmp_path):
    before = contents(run)
    assert [one.title for one in found(runs.CHECK, scope(tmp_path))] == ["1 run: 1 finished"]
    assert contents(run) == before


def test_a_folder_that_does_not_exist_yet_is_a_note(tmp_path):
    assert [one.severity for one in found(runs.CHECK, scope(tmp_path / "outputs"))] == ["note"]


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_is_deleted_by_the_fix(run, tmp_path, name):
    flip(run / name)
    one, summary = found(runs.CHECK, scope(tmp_path))
    assert (one.severity, name in one.title) == ("problem", True)
    assert (summary.severity, summary.title) == ("note", "1 run: 1 damaged")
    assert fixed(one).startswith(f"deleted {name}; now run `cudt eval-ood {run} --perturbation gaussian --gammas ")
    assert problems(tmp_path) == []
    assert not (run / name).exists()
    # Nothing claims any more what is gone.
    assert read_info(run).evaluated == {}


def test_the_command_that_the_fix_names_gives_the_same_bytes(run, tmp_path, call_in):
    before = contents(run)
    for name in TABLES:
        flip(run / name)
    command = fixed(problems(tmp_path)[0]).partition("`")[2].rstrip("`")
    assert not {*TABLES} & {path.name for path in run.iterdir()}
    call_in(command)
    after = contents(run)
    # Of the repair, run.json keeps the command.
    told = [json.loads(one.pop("run.json")) for one in (before, after)]
    assert told[1].pop("repair") == {"gaussian": command}
    assert told[0] == told[1]
    before.pop(checksums.FILE), after.pop(checksums.FILE)
    assert after == before
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["checkpoints/best.safetensors", "run.json", "recipe.yaml", "history.csv", "layers.csv"]
)
def test_what_only_training_can_make_is_never_deleted(run, tmp_path, name):
    flip(run / name)
    before = contents(run)
    (one,) = (one for one in problems(tmp_path) if name in one.title)
    assert (one.severity, one.fix) == ("problem", None)
    assert one.advice
    assert contents(run) == before


@pytest.mark.parametrize("name", ["run.json", "recipe.yaml", "checkpoints/best.safetensors", "layers.csv"])
def test_tables_that_cannot_be_written_again_are_kept(run, tmp_path, name):
    flip(run / name)
    flip(run / "ood.csv")
    assert len(problems(tmp_path)) >= 2
    assert {one.fix for one in problems(tmp_path)} == {None}


def test_tables_of_a_run_that_keeps_no_weights_are_kept(run, tmp_path):
    weights = ["checkpoints/best.safetensors", "checkpoints/last.safetensors"]
    checksums.forget(run, *weights)
    for name in weights:
        (run / name).unlink()
    flip(run / "ood.csv")
    (one,) = problems(tmp_path)
    assert (one.severity, one.fix) == ("problem", None)


def test_files_without_checksums_are_checked_by_their_structure(run, tmp_path):
    (run / checksums.FILE).unlink()
    assert problems(tmp_path) == []
    (run / "ratios.csv").write_text("perturbation,gamma\n")
    weights = run / "checkpoints" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    titles = sorted(one.title for one in problems(tmp_path))
    assert any("ratios.csv" in title for title in titles)
    assert any("best.safetensors: damaged" in title for title in titles)


def test_a_run_that_nobody_trains_becomes_interrupted(run, tmp_path):
    write_info(run, RunInfo(status="running", command="cudt train --recipe x"))
    recorded(run)
    (one,) = problems(tmp_path)
    assert (one.severity, one.advice) == ("warning", "resume it: `cudt train --recipe x`")
    fixed(one)
    assert read_info(run).status == "interrupted"
    assert problems(tmp_path) == []


def test_a_run_in_use_is_neither_examined_nor_repaired(run, tmp_path):
    flip(run / "ood.csv")
    (one,) = problems(tmp_path)
    before = contents(run)
    with cudt.open_run(run).locked():
        assert [one.title for one in found(runs.CHECK, scope(tmp_path))] == ["1 run: 1 in use"]
        with pytest.raises(cudt.UserError, match="a command is using the run now"):
            fixed(one)
    assert contents(run) == before


def test_a_command_that_starts_while_the_doctor_looks_is_not_refused(run):
    taken = threading.Event()
    order = []

    def look() -> None:
        with held(run):
            taken.set()
            time.sleep(0.05)
            order.append("looked")

    looking = threading.Thread(target=look)
    looking.start()
    taken.wait()
    with cudt.open_run(run).locked():
        order.append("began")
    looking.join()
    assert order == ["looked", "began"]


def test_a_run_that_cannot_be_read_is_a_problem_and_the_next_is_checked(run, tmp_path, monkeypatch):
    shutil.copytree(run, run.with_name("other"))
    damaged = checksums.damaged_files

    def refuse(folder: Path) -> list[DamagedFileError]:
        if folder == run:
            raise OSError(errno.EIO, "Input/output error", str(folder / "ood.csv"))
        return damaged(folder)

    monkeypatch.setattr(checksums, "damaged_files", refuse)
    (one,) = problems(tmp_path)
    assert (one.severity, one.title.startswith(f"{run}: cannot be checked (")) == ("problem", True)
    assert found(runs.CHECK, scope(tmp_path))[-1].title == "2 runs: 1 damaged, 1 finished"


def test_results_of_other_weights_are_checked_too(run, tmp_path):
    last = run / "last"
    last.mkdir()
    (last / "evaluation.json").write_text(json.dumps({"format": 1, "weights": "last"}))
    shutil.copy(run / "ood.csv", last / "ood.csv")
    checksums.record_existing(last, "evaluation.json", "ood.csv")
    assert problems(tmp_path) == []
    flip(last / "ood.csv")
    assert f"run `cudt eval-ood {last}`" in fixed(problems(tmp_path)[0])
    assert problems(tmp_path) == []
    assert (run / "ood.csv").is_file()


def test_an_exported_model_is_deleted_as_a_whole(run, tmp_path):
    (run / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (run / "model" / name).write_text(name)
    recorded(run)
    flip(run / "model" / "config.json")
    assert "now run `cudt train --recipe" in fixed(problems(tmp_path)[0])
    assert not (run / "model").exists()
    assert problems(tmp_path) == []


def damaged_behind_a_link(run: Path, folder: str, name: str) -> Path:
    """A damaged file in a folder of the run that is a link to another one."""
    file = run.parents[2] / "elsewhere" / name
    file.parent.mkdir()
    file.write_text("mine")
    (run / folder).symlink_to(file.parent)
    checksums.record_existing(run, f"{folder}/{name}")
    flip(file)
    return file


def test_files_behind_a_link_out_of_the_folder_are_never_deleted(run, tmp_path):
    file = damaged_behind_a_link(run, "samples", "mine.png")
    before = contents(run)
    with pytest.raises(cudt.UserError, match=r"samples/mine\.png is a link out of the run's folder, or below one"):
        fixed(problems(tmp_path)[0])
    assert contents(run) == before
    assert file.exists()


def test_an_exported_model_that_is_a_link_is_left_to_the_user(run, tmp_path):
    damaged_behind_a_link(run, "model", "config.json")
    with pytest.raises(cudt.UserError, match="model is a link out"):
        fixed(problems(tmp_path)[0])
    assert "model/config.json" in checksums.recorded(run)


def test_completions_are_kept_because_nobody_knows_the_instructions_that_they_answer(run, tmp_path):
    file = run / "completions" / "completions.csv"
    file.parent.mkdir()
    file.write_text("instruction,completion\n")
    checksums.record_existing(run, "completions/completions.csv")
    flip(file)
    (one,) = problems(tmp_path)
    assert (one.severity, one.fix) == ("problem", None)
    assert "cudt generate" in one.advice


def test_what_a_fix_has_deleted_is_said_until_it_is_evaluated_again(run, tmp_path):
    flip(run / "ood.csv")
    command = fixed(problems(tmp_path)[0]).partition("`")[2].rstrip("`")
    for _ in range(2):
        note, _ = found(runs.CHECK, scope(tmp_path))
        assert (note.severity, note.fix, note.advice) == ("note", None, f"run `{command}`")
        # A second fix, of another table, does not lose it.
        flip(run / "ratios.csv") if (run / "ratios.csv").exists() else None
        for one in problems(tmp_path):
            assert command in fixed(one)
    cudt.evaluate(cudt.open_run(run), gammas=[0, 0.25, 0.75], noise_seeds=[3])
    assert [one.severity for one in found(runs.CHECK, scope(tmp_path))] == ["ok"]


def test_a_recipe_of_an_earlier_version_may_have_control_characters(run, tmp_path):
    values = recipes.read_resolved(run / "recipe.yaml")
    (run / "recipe.yaml").write_text(strict_yaml.dump({**values, "reproduces": "\x1b[31m"}), encoding="utf-8")
    (run / checksums.FILE).unlink()
    assert problems(tmp_path) == []


@pytest.mark.parametrize("files", [["ood.csv"], None, {"ood.csv": 5}, {"a\0b": []}, {"": []}])
def test_checksums_of_another_shape_are_damage_of_this_run_alone(run, tmp_path, files):
    shutil.copytree(run, run.with_name("other"))
    values = {"format": 1, "files": files, "sha256": checksums._digest_of_records(files)}
    (run / checksums.FILE).write_text(json.dumps(values))
    assert {one.title.partition(":")[0] for one in problems(tmp_path)} == {str(run / checksums.FILE)}


def test_an_error_that_nobody_expected_ends_the_check_of_one_run_only(run, tmp_path, monkeypatch):
    shutil.copytree(run, run.with_name("other"))

    def fail(path: Path, info: RunInfo) -> list[Diagnosis]:
        if path == run:
            raise AttributeError("'list' object has no attribute 'items'")
        return []

    monkeypatch.setattr(run_state, "check", fail)
    (one,) = problems(tmp_path)
    assert one.title == f"{run}: cannot be checked (AttributeError: 'list' object has no attribute 'items')"


def test_a_thousand_runs_take_less_than_ten_seconds(run, tmp_path, monkeypatch):
    """Measured with a hundred."""
    for number in range(99):
        shutil.copytree(run, run.with_name(f"copy{number}"), ignore=shutil.ignore_patterns("*.safetensors"))
        checksums.forget(
            run.with_name(f"copy{number}"), *(f"checkpoints/{name}.safetensors" for name in ("best", "last"))
        )
    began = time.process_time()
    assert [one.title for one in found(runs.CHECK, scope(tmp_path))] == ["100 runs: 100 finished"]
    assert time.process_time() - began < 1.0


def test_the_commands_name_levels_seeds_and_pictures(run):
    note = read_info(run).evaluated["gaussian"]
    assert run_files._evaluation(Path("r"), "gaussian", note.model_copy(update={"samples": 2})) == [
        *("cudt", "eval-ood", "r", "--perturbation", "gaussian", "--gammas", "0.0,0.25,0.75"),
        *("--noise-seed", "3", "--save-samples", "2"),
    ]
    assert "--probabilities" in run_files._evaluation(Path("r"), "discrete", note)
