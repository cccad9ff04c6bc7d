"""What a user reads when something is wrong: one line for each error, with exit code 2.

Other tests do not compare sentences. A message says what is wrong, where, and how to fix it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cudt.cli import main as cli

#: Files in the current folder.
FILES = {
    "cut.yaml": "base: reviews-ut\ntraining: {epochs: 3\n",
    "twice.yaml": "base: reviews-ut\nseed: 1\nseed: 2\n",
    "tag.yaml": "base: reviews-ut\nseed: !!python/name:os.system\n",
    "bomb.yaml": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "circle.yaml": "base: circle.yaml\n",
    "texts.yaml": "base: reviews-ut\nmodel: {name: dust}\n",
    "score.yaml": """
        recipe: reviews-ut
        score: {measure: loss, direction: maximize}
        arms: {one: {sampler: grid, search: {descent.alpha: [0.1, 0.2]}}}
        """,
    "many.yaml": """
        base: reviews-ut
        model: {layers: 0, step_size: 2}
        descent: {alpha: [0.1, 1.5], form: lin, resilience: slak}
        training: {epochs: three, batch_sise: 8}
        noise: {kind: pink}
        evaluation: {gammas: []}
        """,
}
#: A command, and what it prints.
MESSAGES = {
    "train --recipe review-ut": "no recipe is called 'review-ut'; did you mean 'reviews-ut'?",
    "train --recipe mine.yaml": "recipe file 'mine.yaml' does not exist",
    "train --recipe cut.yaml": "cut.yaml:3: expected ',' or '}', but got '<stream end>'",
    "train --recipe twice.yaml": "twice.yaml:3: duplicate key 'seed'; remove one",
    "train --recipe tag.yaml": "tag.yaml:2: tag 'tag:yaml.org,2002:python/name:os.system' is not allowed; remove it",
    "train --recipe bomb.yaml": "bomb.yaml:1: anchors and aliases are not allowed; repeat the value",
    "train --recipe latin.yaml": "latin.yaml: not valid UTF-8; save the file as UTF-8",
    "train --recipe circle.yaml": "circle.yaml: base: circle.yaml inherits from this file",
    "train --recipe many.yaml": (
        "many.yaml: 9 errors\n"
        "  model.layers: must be greater than or equal to 1, got 0\n"
        "  model.step_size: must be less than or equal to 1, got 2\n"
        "  descent.alpha.1: must be less than 1, got 1.5\n"
        "  descent.form: must be 'linear', 'log' or 'ladder', got 'lin'; did you mean 'linear'?\n"
        "  descent.resilience: must be 'none', 'slack' or 'decay', got 'slak'; did you mean 'slack'?\n"
        "  training.epochs: must be a valid integer, got 'three'\n"
        "  training.batch_sise: unknown key; did you mean 'batch_size'?\n"
        "  noise.kind: unknown noise 'pink'; known: discrete, gaussian, uniform\n"
        "  evaluation.gammas: γ grid []: expected 1 to 1000 levels from 0 to 1e+06, as start:stop:step, like 0:2.1:0.15, or as a list, like 0,0.5,1"
    ),
    "train --recipe reviews-ut --set training.epoch=3": "reviews-ut.yaml with your changes: training.epoch: unknown key; did you mean 'epochs'?",
    "train --recipe reviews-ut --set descent.resilience=slack": "reviews-ut.yaml with your changes: descent: beta is the price of resilience slack or decay: set both or neither",
    "train --recipe reviews-ut --set descent.warmup_epochs=12": "reviews-ut.yaml with your changes: descent.warmup_epochs: 12 of training.epochs = 12 leave no epoch with constraints",
    "train --recipe reviews-ut --set descent.dual.smoothing=0.5": "reviews-ut.yaml with your changes: descent.dual: proportional_gain and smoothing need optimizer: nupi",
    "train --recipe reviews-ut --set model.name=my.model": "reviews-ut.yaml with your changes: model.name: model 'my.model': importing the module failed: ModuleNotFoundError: No module named 'my'",
    "train --recipe reviews-ut --set noise.kind=discrete": "reviews-ut.yaml with your changes: noise.kind: 'discrete' is applied to texts; train on gaussian or uniform",
    "train --recipe reviews-ut --set epochs": "--set 'epochs': write key=value, with dots for sections, like training.epochs=3",
    "train --recipe reviews-ut --seed 9999999999": "reviews-ut.yaml with your changes: seed: must be less than 4294967296, got 9999999999",
    "train --recipe reviews-ut --seed one": "--seed one: expected integers, for example 0,1,2",
    "train --recipe reviews-ut --objective emr": "reviews-ut.yaml with your changes: objective: unknown objective 'emr'; did you mean 'erm'? known: constrained, erm, supervised",
    "train --recipe reviews-ut --name report": "--name: 'report' is a folder that cudt itself writes to; choose another name",
    "train --recipe reviews-ut --set checkpoints.keep=best --set training.select=last": "reviews-ut.yaml with your changes: checkpoints.keep: best deletes the weights of training.select: last, by which the run is evaluated; set keep to last or both",
    "train --recipe reviews-ut --set descent.alpha=atuo": "reviews-ut.yaml with your changes: descent.alpha: must be a valid number or a valid list or a section, got 'atuo'",
    "train --recipe reviews-ut --set descent.alpha=[0.1,0.2]": "descent.alpha: expected one rate, or one for each of 4 layers, got 2 rates",
    "train --recipe imdb-minilm --set model.revision=../main": "imdb-minilm.yaml with your changes: model.revision: must match pattern '^\\w[\\w-]*([./][\\w-]+)*$', got '../main'",
    "train --recipe smoke-video --set model.patch=6": "model.patch = 6: frames of 32×32 pixels are not a multiple of the patch size; change task.size or model.patch",
    "train --recipe texts.yaml": "this model needs a video task: set task.name to ucsd, folder or another video task",
    "eval-ood outputs/none": "'outputs/none' is not a run folder: no recipe.yaml and run.json",
    "runs nowhere": "folder 'nowhere' does not exist",
    "sweep --join": "--storage: missing; see --help",
    "sweep --join --recipe x": "--join: takes part in a sweep as it is; leave out other options",
    "sweep --join --storage sqlite:///x.db": "--storage: there is no such unfinished sweep; sweeps: none",
    "sweep": "--search: missing; see --help",
    "sweep --search alhpa": "no search is called 'alhpa'; did you mean 'alpha'?",
    "sweep --search score.yaml": "search score: score.direction must be 'minimize' for a loss, got 'maximize'",
    "reproduce --scale smoke --only figure-2": "scale smoke has no experiment 'figure-2'; did you mean 'figure-1'?",
    "reproduce --scale tiny": "no scale is called 'tiny'; available: cpu, full, smoke",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("messages")
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "latin.yaml").write_bytes("expect: größer\n".encode("latin-1"))
    return path


@pytest.mark.parametrize("command", MESSAGES)
def test_a_mistake_is_answered_with_how_to_fix_it(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr("sys.argv", ["cudt", *command.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {MESSAGES[command]}\n"
    assert sorted(folder.rglob("*")) == before
