"""The commands, each called as a user calls it, and what they import; tests/parts has their numbers."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from cudt.config import recipe
from cudt.data import hub
from cudt.evaluation import evaluate
from cudt.runs.info import RunInfo
from cudt.runs.run import open_run, run_for
from cudt.tasks import base
from cudt.utils.errors import TerminatedError
from tests.conftest import tiny_recipe
from tests.planted import make_run
from tests.pretrained import tiny_llama, tiny_pretrained
from tests.sweeps import seeds, write_search
from tests.texts import train, write_instructions, write_recipe, write_reviews
from tests.use.conftest import SMALL, contents

CPU = ("--device", "cpu")
TRAIN = ("train", "--recipe", "reviews-ut", *SMALL, *CPU)
EXPERIMENT = ("experiment", "reviews-ut", *SMALL, *CPU)


def folders(*names: tuple[str, int]) -> list[str]:
    return [f"{name}-{tiny_recipe(objective=name, seed=seed).identity()}" for name, seed in names]


def test_errors_are_one_line_and_a_bug_keeps_its_traceback(call, monkeypatch):
    def fail_with(error: BaseException) -> None:
        def read(*_: object) -> None:
            raise error

        monkeypatch.setattr(recipe, "read", read)

    fail_with(OSError(28, "No space left on device", "run.json"))
    assert call("recipes") == (2, "", "error: [Errno 28] No space left on device: 'run.json'\n")
    for error, code in ((KeyboardInterrupt(), 130), (TerminatedError(), 128 + signal.SIGTERM)):
        fail_with(error)
        assert call(*TRAIN) == (code, "", "interrupted; run the same command again\n")
    for bug in (ValueError("a mistake"), OSError("about no file")):
        fail_with(bug)
        with pytest.raises(type(bug), match=str(bug)):
            call("recipes")


def test_seeds_and_objectives_are_one_run_each_and_finished_ones_are_skipped(call, tmp_path):
    lists = ("--seed", "0,1", "--objective", "erm", "--objective", "constrained")
    code, output, error = call(*TRAIN, *lists)
    assert (code, error) == (0, "")
    names = folders(("erm", 0), ("constrained", 0), ("erm", 1), ("constrained", 1))
    assert {path.name for path in tmp_path.glob("outputs/reviews-ut/*")} == {*names}
    paths = [f"outputs/reviews-ut/{name}" for name in names]
    assert output.splitlines()[-1] == f"next: cudt eval-ood {' '.join(paths)}"
    before = contents(tmp_path)
    assert call(*TRAIN, *lists)[1].count("already finished: ") == 4
    assert contents(tmp_path) == before


def test_an_experiment_trains_evaluates_and_reports_once(call, tmp_path, monkeypatch):
    # Drawing takes most of the time.
    monkeypatch.setattr("cudt.report.page._figures", lambda *_: [])
    command = (*EXPERIMENT, "--seeds", "0,1", "--set", "evaluation.perturbations=[uniform]")
    code, output, _ = call(*command)
    assert code == 0
    runs = [open_run(path) for path in sorted(tmp_path.glob("outputs/reviews-ut/*"))]
    assert len(runs) == 4
    for run in runs:
        levels = run.rows("ood")[["noise", "gamma"]].to_numpy().tolist()
        assert levels == [["uniform", level] for level in (0, 0.5, 1)]
    table = pd.read_csv(tmp_path / "outputs/report-reviews-ut/table.csv")
    assert table[["objective", "seeds"]].to_numpy().tolist() == [["constrained", 2], ["erm", 2]]
    assert output.splitlines()[-1] == "report: outputs/report-reviews-ut/index.html"

    before = contents(tmp_path / "outputs/reviews-ut")
    monkeypatch.setattr(evaluate, "load", lambda *_: pytest.fail("evaluated again"))
    assert call(*command)[0] == 0
    assert contents(tmp_path / "outputs/reviews-ut") == before


def test_a_sweep_trains_the_runs_that_train_would_and_reads_no_test_data(call, tmp_path):
    write_reviews(tmp_path)
    own = "task: {name: text, train: train.csv, test: test.csv, text: review, label: opinion}\n"
    own += f"model: {{name: encoder, pretrained: {tiny_pretrained(tmp_path / 'bert')}}}\n"
    Path("own.yaml").write_text(own + "training: {batch_size: 8}\n")
    (tmp_path / "test.csv").write_bytes(b"\xff\xfe no table \x00")
    score = {"measure": "grid", "direction": "maximize", "gammas": [0.0, 1.0]}
    fixed = {"training.epochs": 1}
    path = write_search(tmp_path, recipe="own.yaml", fixed=fixed, score=score, arms={"a": seeds(1)})
    words = ("sweep", "--search", path, "--data-root", tmp_path, *CPU)
    assert "a: seed=0  to do\n1 trials, 0 done, 1 to do\n" in call(*words, "--plan")[1]
    code, output, errors = call(*words)
    assert code == 0, errors
    assert "1/1  a: seed=0  score" in output
    (folder,) = (tmp_path / "outputs" / "own").iterdir()
    assert f"next: cudt eval-ood {folder.relative_to(tmp_path)}" in output
    assert not (folder / "model").exists()
    code, output, _ = call(*words)
    assert (code, "resuming: 1 of 1 trials are done" in output) == (0, True)
    (own,) = (tmp_path / "outputs" / "sweeps" / "own").iterdir()
    assert run_for(recipe.load(str(own / "best.yaml")), Path("outputs")).path.name == folder.name
    assert "finished" in call(*words, "--plan")[1]


def test_a_run_is_one_table_with_a_line_for_each_level_and_a_second_call_skips_it(call, copy):
    code, output, _ = call("eval-ood", "copy", *CPU)
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["0", "0.5", "1"]
    assert max(map(len, lines)) <= 80
    before = contents(copy.path)
    again = call("eval-ood", "copy", *CPU)[1]
    assert again.splitlines() == ["already evaluated: copy (--again repeats it)", *lines]
    assert contents(copy.path) == before


def test_options_of_an_evaluation_reach_its_tables(call, copy):
    options = ("--perturbation", "gaussian,uniform", "--noise-seed", "1,2", "--gammas", "0,1")
    code, output, _ = call("eval-ood", "copy", *options, "--weights", "last", "--exits", *CPU)
    assert code == 0
    assert copy.rows("ood").empty
    rows = copy.with_weights("last").rows("ood")
    assert {*rows["noise"]} == {"gaussian", "uniform"}
    assert {*rows["seed"]} == {1, 2}
    assert {*rows["gamma"]} == {0, 1}
    assert output.splitlines()[1].split()[-3:] == ["exit", "layers", "FLOPs"]


def test_if_one_run_is_unfinished_none_is_evaluated(call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status="interrupted"))
    before = contents(tmp_path)
    code, _, error = call("eval-ood", "whole", "copy")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: 'copy' is interrupted, not finished; ")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_that_fails_stops_no_other(workers, call, copy):
    other = shutil.copytree(copy.path, copy.path.with_name("other"))
    (other / "checkpoints" / "best.safetensors").write_bytes(b"")
    code, output, error = call("eval-ood", "other", "copy", "--workers", workers, *CPU)
    assert code == 1
    assert error.startswith("error: other: other/checkpoints/best.safetensors: damaged")
    assert "written to copy/ood.csv" in output
    assert len(copy.rows("ood")) == 3
    with copy.locked():
        code, _, error = call("eval-ood", "copy", "--gammas", "2", *CPU)
    assert (code, error.count("\n")) == (2, 1)


def test_instructions_are_answered_in_the_run_and_a_prompt_on_the_terminal(call, tmp_path):
    write_instructions(tmp_path)
    write_recipe(tmp_path, tiny_llama(tmp_path / "llama", initializer_range=0.5))
    run = train(tmp_path, tmp_path / "out", "training.epochs=1")
    Path("ask.json").write_text(json.dumps([{"instruction": "Say red."}]))
    how = ("--gamma", "0.5", "--noise-seed", "3", "--max-new-tokens", "6", *CPU)
    code, output, _ = call("generate", run.path, "--instructions", "ask.json", *how)
    assert code == 0
    file = run.path / "extra/completions/ask-gamma0.5-seed3-tokens6.json"
    assert output == f"completions in {file}\n"
    (answer,) = json.loads(file.read_text())
    before = contents(run.path)
    code, output, _ = call("generate", run.path, "--prompt", "Say red.", *how)
    assert code == 0
    assert answer["output"].strip() in output
    assert contents(run.path) == before
    assert call("generate", run.path)[0] == 2


@pytest.fixture
def outputs(call, trained_run) -> Path:
    """Two evaluated runs of different α, an unevaluated one of another seed, and one that failed."""
    out, curve = Path("outputs/reviews-ut"), {0.0: 0.9, 0.4: 0.8, 1.0: 0.6, 2.0: 0.5}
    make_run(trained_run, out, curve, overrides=["descent.alpha=0.2"], feasible=True, monotone=True)
    make_run(trained_run, out, {0.0: 0.7}, objective="erm", feasible=False, monotone=False)
    make_run(trained_run, out, None, objective="erm", seed=1, feasible=False, monotone=True)
    failed = make_run(trained_run, out, None, seed=2)
    failed.update_info(RunInfo(status="failed", reason="the loss is not finite"))
    return out


def test_every_run_is_one_row_named_by_what_sets_it_apart(call, outputs, trained_run):
    code, output, error = call("runs", "--csv")
    assert (code, error) == (0, "")
    rows = {(row["objective"], row["seed"]): row for row in csv.DictReader(output.splitlines())}
    assert len(rows) == 4
    best = rows["constrained", "0"]
    assert (best["recipe"], best["model"], best["status"]) == ("reviews-ut", "unrolled", "finished")
    assert (best["verdict"], best["metric"]) == ("feasible, monotone", "accuracy")
    validation = trained_run.rows("layers", "validation")["metric"]
    assert float(best["score"]) == pytest.approx(validation.iloc[-1])
    # γ_train is 0.4: the mean of the two higher levels.
    assert float(best["OOD"]) == pytest.approx(0.55)
    assert rows["erm", "0"]["OOD"] == ""
    assert rows["constrained", "2"]["status"] == "failed"
    assert (best["variant"], rows["constrained", "2"]["variant"]) == ("α=0.2", "α=0.1")
    (outputs / best["run"] / "run.json").write_text("{")
    code, output, error = call("runs", "outputs")
    assert code == 0
    assert output.splitlines()[1].split() == "run variant seed status score OOD verdict n".split()
    assert error.startswith(f"warning: {outputs / best['run']}/run.json: ")


def test_recipes_and_searches_are_listed_and_a_recipe_is_shown_with_changes(call):
    listed = call("recipes")[1]
    assert "\nreviews-ut " in listed
    assert "\nsmoke-text-search " in listed
    output = call("recipes", "show", "smoke-text", "--set", "training.batch_size=77")[1]
    epochs = "\ntraining.epochs: 3  (default 10)\n    Passes over the training data."
    for line in (epochs, "\ntask.name: reviews  (required)\n", "\ntraining.batch_size: 77  (def"):
        assert line in output


def test_the_doctor_names_what_is_missing_and_unfinished_and_damaged_runs(call, copy, monkeypatch):
    missing = "cudt.reproduce.plan.missing"
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.setattr(missing, lambda recipe, root: [f"{recipe.name}-weights"])
    monkeypatch.setattr(base, "published", lambda root: {})
    code, printed, _ = call("doctor", "copy")
    assert code == 0
    assert "missing     imdb-minilm: imdb-minilm-weights" in printed
    assert "1 finished" in printed
    copy.update_info(RunInfo(status="running"))
    code, printed, _ = call("doctor", "copy")
    assert code == 0
    assert "unfinished  copy: resume it: cudt train" in printed
    (copy.path / "history.csv").write_text("changed")
    code, printed, _ = call("doctor", "copy")
    assert code == 1
    assert "problem     copy/history.csv: damaged" in printed


HEAVY = ("torch", "transformers", "pandas", "altair", "accelerate", "optuna", "datasets")
#: Prints the exit code of a command, and the heavy packages that it has imported.
CALL = f"""
import json, sys
from cudt.cli.main import main
sys.argv = ["cudt", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    code = stop.code or 0
print(json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
TYPO = ["--set", "training.epoch=3"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["recipes"], 0),
        (["recipes", "show", "imdb-minilm"], 0),
        (["train", "--recipe", "imdb-minilm", *TYPO], 2),
        (["train", "--recipe", "ucsd-dust", "--objective", "emr"], 2),
        (["sweep", "--search", "alhpa"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_and_refusals_import_nothing_heavy(arguments, code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CALL, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [code, []], done.stderr


def test_import_cudt_imports_nothing_heavy(tmp_path):
    code = f"import cudt, sys; cudt.train; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"
