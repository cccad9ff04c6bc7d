"""`cudt reproduce`: scales, the plan, what is missing, and the loop over tiny experiments."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cudt.config import recipe as recipes
from cudt.config import yaml
from cudt.reproduce import generated, plan, run, scale
from cudt.runs.run import open_run
from cudt.sweep.studies import open_storage, own_storage, studies_of
from cudt.sweep.worker import SweepOptions, work
from cudt.utils.errors import StopRequest, UserError
from tests.sweeps import seeds, write_search

PAIR = {
    "constrained": seeds(1, fixed={"objective": "constrained"}),
    "erm": seeds(1, fixed={"objective": "erm"}),
}


def pair(folder: Path, name: str = "pair", **changes: Any) -> str:
    """A search file of two runs."""
    return str(write_search(folder, name, **{"arms": PAIR, **changes}))


def listed(search: str, **changes: Any) -> dict[str, Any]:
    return {"name": "table", "search": search, "hours": 2.0, **changes}


def write_scale(folder: Path, *experiments: dict[str, Any], **changes: Any) -> str:
    values = {"machine": "a slow one", "experiments": [*experiments], **changes}
    (folder / "mine.yaml").write_text(yaml.dump(values), encoding="utf-8")
    return str(folder / "mine.yaml")


def options(folder: Path, **more: Any) -> SweepOptions:
    return SweepOptions(folder / "out", "cpu", **more)


def screen() -> Console:
    return Console(file=io.StringIO(), width=80, markup=False, emoji=False)


def text_of(console: Console) -> str:
    return re.sub(r" +", " ", console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", recipes.names("scale"))
def test_a_scale_that_comes_with_cudt_is_valid_and_its_plan_fits_a_terminal(name, tmp_path):
    text = recipes.locate(name, "scale").read_text(encoding="utf-8")
    assert text.startswith(f"# cudt reproduce --scale {name}\n")
    made, console = plan.make(loaded := scale.load(name), options(tmp_path)), screen()
    plan.show(made, loaded.machine, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) < 80 for line in lines[: len(made) + 1])
    assert not (tmp_path / "out").exists()


def test_machines_that_join_find_what_was_begun(tmp_path):
    with pytest.raises(UserError, match="no reproduction has begun here"):
        scale.begun(tmp_path)
    for source in ("smoke", write_scale(tmp_path, listed("alpha", name="figure-1"))):
        scale.save(tmp_path, source, ["figure-1"])
        assert scale.begun(tmp_path) == scale.load(source, ["figure-1"])


def test_what_is_missing_is_reported_once_with_how_to_get_it(tmp_path):
    other = pair(tmp_path, "other", recipe="imdb-ut", fixed=None)
    third = pair(tmp_path, "third", recipe="imdb-ut", fixed={"training.epochs": 4})
    mine = listed(pair(tmp_path), hours=0.25)
    file = write_scale(tmp_path, listed(third, hours=1100), listed(other), mine)
    made, console = plan.make(scale.load(file), options(tmp_path, data_root=tmp_path)), screen()
    plan.show(made, "a slow one", console)
    text = text_of(console)
    assert "1 table pair · reviews-ut 0/2 0.25 \n" in text
    assert "3 table third · imdb-ut 0/2 1,100 * \n" in text
    assert text.count("for 2–3: dataset stanfordnlp/imdb") == 1
    assert text.count("`hf download distilbert/distilbert-base-uncased --local-dir ") == 1
    assert text.endswith("6 runs to train, 1,102 hours\nhours: a slow one\n")


def train(loaded: scale.Scale, asked: SweepOptions) -> None:
    """What workers do, in this process."""
    asked.out.mkdir(parents=True)
    storage = open_storage(own_storage(asked.out))
    for experiment in loaded.experiments:
        for study in (studies := studies_of(experiment.sweep, storage)):
            study.enqueue()
        work(studies, asked, StopRequest())


def stamps(out: Path) -> dict[str, int]:
    """The times at which runs were trained, evaluated, and answered instructions."""
    patterns = ("best.safetensors", "examples.parquet", "questions*tokens*.json")
    found = [path for pattern in patterns for path in out.rglob(pattern)]
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


def test_everything_is_done_once(tmp_path):
    completions = {"instructions": "questions.json", "gammas": [0.0, 1.5], "max_new_tokens": 3}
    llama = listed("pair", recipe="smoke-llama", evaluate="all", completions=completions)
    file = write_scale(
        tmp_path, listed(pair(tmp_path), perturbations=["gaussian", "uniform"]), llama
    )
    loaded, root, console = scale.load(file), tmp_path / "data", screen()
    generated.make(root)
    asked = options(tmp_path, data_root=root)
    train(loaded, asked)
    assert run.reproduce(loaded, asked, console)
    assert text_of(console).count("2/2 done") == 2
    out = tmp_path / "out"
    runs = [open_run(path.parent) for path in out.glob("*/*/run.json")]
    assert len(runs) == 4
    for one in runs:
        kinds = {"gaussian", "uniform"} if one.recipe.name == "reviews-ut" else {"gaussian"}
        assert {*one.rows("ood")["noise"]} == kinds
    answers = [json.loads(path.read_text()) for path in out.rglob("questions-gamma*.json")]
    assert [len(one) for one in answers] == [4, 4, 4, 4]
    first = stamps(out)
    assert run.reproduce(loaded, asked, console)
    assert stamps(out) == first
    assert text_of(console).endswith("0 runs to train, 0 hours\nhours: a slow one\n")


def test_a_run_that_fails_and_data_that_are_missing_stop_nothing_else(tmp_path):
    lacking = pair(tmp_path, "lacking", recipe="imdb-ut", fixed=None)
    file = write_scale(tmp_path, listed(lacking, hours=0.1), listed(pair(tmp_path)))
    loaded, console = scale.load(file), screen()
    asked = options(tmp_path, data_root=tmp_path)
    train(loaded.model_copy(update={"experiments": loaded.experiments[1:]}), asked)
    victim = next((tmp_path / "out").glob("reviews-ut/erm-*/layers.csv"))
    victim.write_text("damaged")
    assert not run.reproduce(loaded, asked, console)
    text = text_of(console)
    assert "1 table lacking · imdb-ut 0/2 0.1 * \n" in text
    assert "2 table pair · reviews-ut 2/2 2 \n" in text
    assert "failed:" in text
    assert "damaged" in text
    (constrained,) = (tmp_path / "out").glob("reviews-ut/constrained-*")
    assert not open_run(constrained).rows("ood").empty


def test_a_scale_for_a_gpu_is_refused_without_one(tmp_path, monkeypatch):
    loaded = scale.load(write_scale(tmp_path, listed(pair(tmp_path)), needs_gpu=True))
    monkeypatch.setattr("torch.accelerator.is_available", lambda *_: False)
    with pytest.raises(UserError, match="needs a GPU"):
        run.reproduce(loaded, SweepOptions(tmp_path / "out"), screen())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_smoke_scale_killed_halfway_and_repeated_does_nothing_twice(tmp_path):
    out = tmp_path / "out"
    words = ["reproduce", "--scale", "smoke", "--workers", "2", "--out", str(out)]
    command = [sys.executable, "-m", "cudt", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"}
    killed = subprocess.Popen(command, env=environment)
    while len(list(out.glob("*/*/examples.parquet"))) < 10:
        assert killed.poll() is None
        time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # Workers end by themselves, and may finish their job.
    time.sleep(10)
    done = stamps(out)
    again = subprocess.run(command, env=environment, timeout=1200, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(" done ") == 9
    after = stamps(out)
    assert {path: after[path] for path in done} == done
    assert len(after) > len(done)
    figure = "smoke-text-gaussian-descent-and-robustness.png"
    assert (out / "report" / "figures" / figure).is_file()
