"""`cudt push`, against a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, constants

import cudt
from cudt.config import recipe as recipes
from cudt.data import hub as hubs
from cudt.runs.find import open_run
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from cudt.training import launch
from tests import instructions, texts
from tests.cli.conftest import call as call
from tests.conftest import quiet
from tests.fake_hub import TOKEN, USER, FakeHub, serving
from tests.pretrained import tiny_llama, tiny_pretrained

ROOT = Path(__file__).parents[2]
SPLITS = ("train", "test")
CommandLine = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that this process uses, logged in."""
    with serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        hubs.is_reachable.cache_clear()
        yield hub
    hubs.is_reachable.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("secret-place")


@pytest.fixture(scope="module")
def encoder(folder) -> Run:
    """An evaluated run of an encoder, whose data and weights are in folders."""
    texts.write_reviews(folder)
    path = texts.write_recipe(folder, tiny_pretrained(folder / "bert"))
    run = launch.train(recipes.load(str(path), ["training.epochs=1"]), folder / "outputs", "cpu", folder, quiet())
    cudt.evaluate(run, data_root=folder, quiet=True)
    return run


@pytest.fixture(scope="module")
def adapter(folder) -> Run:
    instructions.write_instructions(folder)
    instructions.write_recipe(folder, tiny_llama(folder / "llama"))
    return instructions.train(folder, folder / "outputs", "training.epochs=1")


def pushed(call: CommandLine, run: Run | Path, *options: str) -> str:
    code, output, error = call("push", run.path if isinstance(run, Run) else run, *options)
    assert code == 0, error
    return output


def refused(call: CommandLine, run: Run | Path, *options: str) -> str:
    code, _, error = call("push", run.path if isinstance(run, Run) else run, *options)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert TOKEN not in error
    return error.removeprefix("error: ")


# ---------------------------------------------------------------- the example of the guide


@pytest.mark.slow
def test_the_example_trains_uploads_and_reads_back(tmp_path, monkeypatch):
    """As a user runs it: with the names of a real model and dataset, which this hub has tiny ones of."""
    tiny_pretrained(tmp_path / "bert")
    texts.write_reviews(tmp_path)
    with serving() as hub:
        model = hub.add("prajjwal1/bert-tiny", tmp_path / "bert")
        data = hub.add("cornell-movie-review-data/rotten_tomatoes", dataset(tmp_path), "dataset")
        output = run_example(hub, tmp_path)
        uploaded = hub.model(f"{USER}/films")
        (run,) = map(open_run, (tmp_path / "outputs" / "films").iterdir())
        revisions = {"model": model, "task": data}
        assert run.info().revisions == json.loads(uploaded.files()["run.json"])["revisions"] == revisions
        assert uploaded.private
        # The first one is empty.
        assert uploaded.messages == ["initial commit", f"Upload films/{run.label} with cudt"]
        card = uploaded.files()["README.md"].decode()
        check_metadata(card, run, data)
        monkeypatch.chdir(run.path)
        assert logits_in(card, hub, tmp_path) == pytest.approx(logits_of_local_card(run), abs=1e-6)
    assert TOKEN not in output
    assert "accuracy under gaussian noise, γ = 0.6" in output
    assert str(revisions) in output
    assert open_run(tmp_path / "downloaded").read_table("ood").equals(run.read_table("ood"))


def dataset(folder: Path) -> dict[str, bytes]:
    """The reviews in a folder with the splits and columns of the example."""
    train, test = ((folder / f"{name}.csv").read_text().replace("review,opinion", "text,label") for name in SPLITS)
    files = {"train.csv": train, "validation.csv": test, "test.csv": test, "README.md": "# Films\n"}
    return {name: content.encode() for name, content in files.items()}


def run_example(hub: FakeHub, folder: Path) -> str:
    """The output of examples/hub/push.sh in a folder."""
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (("cudt", "-m cudt"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = hub.environment(folder / "home")
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "examples/hub/push.sh", f"{USER}/films"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_metadata(card: str, run: Run, data: str) -> None:
    """The hub reads the base model, the dataset and the metric at each level."""
    metadata = ModelCard(card).data
    assert metadata.base_model == "prajjwal1/bert-tiny"
    (first, *others) = metadata.eval_results
    assert (first.dataset_type, first.dataset_revision) == ("cornell-movie-review-data/rotten_tomatoes", data)
    assert (first.dataset_split, first.metric_args) == ("test", {"noise": "gaussian", "gamma": 0.0})
    table = run.read_table("ood")
    values = table[table["metric"] == "accuracy"]["value"].tolist()
    assert [one.metric_value for one in (first, *others)] == pytest.approx(values, abs=1e-6)


def code_of(card: str) -> str:
    return card.split("```python\n")[1].split("```")[0].replace('"a text"', '"the film was good"')


def logits_in(card: str, hub: FakeHub, folder: Path) -> list[float]:
    """What the card's code computes for its reader, who has no cudt."""
    driver = f"""
import sys
sys.modules["cudt"] = None
exec(sys.stdin.read())
print(logits[0].tolist())
by_name = AutoModel.from_pretrained("{USER}/films", add_pooling_layer=False)
assert all(torch.equal(one, other) for one, other in zip(by_name.parameters(), encoder.parameters(), strict=True))
"""
    (folder / "reader").mkdir()
    environment = hub.environment(folder / "reader" / "home")
    command = [sys.executable, "-c", driver]
    done = subprocess.run(
        command, input=code_of(card), cwd=folder / "reader", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def logits_of_local_card(run: Run) -> list[float]:
    """What the code of the card in the run folder computes, which other tests compare with cudt."""
    found: dict[str, Any] = {}
    exec(code_of((run.path / "model" / "README.md").read_text(encoding="utf-8")), found)
    return found["logits"][0].tolist()


# ---------------------------------------------------------------- what is uploaded


def test_nothing_says_where_a_run_was_trained_or_by_whom(call, hub, encoder, adapter, folder):
    private = [str(folder), folder.name, TOKEN]
    # Short words, which the bytes of a picture can have by chance.
    names = [f'"{socket.gethostname()}', f"{Path.home()}/"]
    for run in (encoder, adapter):
        pushed(call, run)
        files = hub.model(f"{USER}/{run.recipe.name}-{run.label}").files()
        assert {"README.md", "recipe.yaml", "run.json"} <= set(files)
        for name, content in files.items():
            searched = private if name.endswith((".png", ".safetensors")) else [*private, *names]
            assert not any(word.encode() in content for word in searched), name
    recipe = yaml.safe_load(files["recipe.yaml"])
    assert (recipe["model"]["pretrained"], recipe["task"]["file"]) == ("llama", "own.json")
    info = json.loads(files["run.json"])
    assert "data_root" not in info
    assert info["command"] == "cudt train --recipe recipe.yaml"


def test_a_run_with_lora_uploads_its_adapter_and_says_that_the_base_is_not_on_the_hub(call, hub, adapter):
    assert "no results under noise: `cudt eval-ood` measures them" in pushed(call, adapter, "--repo", f"{USER}/lora")
    files = hub.model(f"{USER}/lora").files()
    assert "adapter_model.safetensors" in files
    assert not any(name.startswith(("model.", "checkpoints", "ood")) for name in files)
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "llama"
    card = files["README.md"].decode()
    assert ModelCard(card).data.library_name == "peft"
    assert ModelCard(card).data.base_model is None
    assert "The base model is not on the hub" in card


def test_the_adapter_of_a_model_of_the_hub_names_it(call, hub, adapter, tmp_path):
    """As in a run that was trained with the model below a data root."""
    run = Path(shutil.copytree(adapter.path, tmp_path / "run"))
    change(run / "recipe.yaml", adapter.recipe.settings.model.pretrained, "owner/llama")
    pushed(call, run, "--repo", f"{USER}/named")
    files = hub.model(f"{USER}/named").files()
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "owner/llama"
    assert ModelCard(files["README.md"].decode()).data.base_model == "owner/llama"


def change(file: Path, old: str, new: str) -> None:
    """Change a file of a run folder, and forget its checksum."""
    from cudt.runs import checksums

    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    checksums.forget(file.parent, file.name)


def test_a_model_that_only_cudt_loads_is_uploaded_as_a_run_that_can_be_evaluated(call, hub, trained_run, tmp_path):
    cudt.evaluate(run := open_run(Path(shutil.copytree(trained_run.path, tmp_path / "copy"))), quiet=True)
    pushed(call, run, "--repo", f"{USER}/ut")
    files = hub.model(f"{USER}/ut").files()
    assert {"checkpoints/best.safetensors", "ood.csv", "layer_losses_and_noise.png"} <= set(files)
    assert files["layer_losses_and_noise.png"].startswith(b"\x89PNG")
    assert len(files["layer_losses_and_noise.png"]) < 200_000
    card = files["README.md"].decode()
    assert ModelCard(card).data.library_name == "cudt"
    assert "Only cudt loads it" in card
    code = card.split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    again = found["run"].read_table("ood")
    first = run.read_table("ood")
    levels = first["gamma"].isin([0, 0.5])
    assert again[again["gamma"].isin([0, 0.5])]["value"].tolist() == pytest.approx(first[levels]["value"].tolist())


def test_a_branch_is_created_and_the_other_one_stays_as_it_is(call, hub, encoder):
    for _ in range(2):
        pushed(call, encoder, "--repo", f"{USER}/branched", "--revision", "trial")
    uploaded = hub.model(f"{USER}/branched")
    assert set(uploaded.files("main")) == {".gitattributes"}
    assert "config.json" in uploaded.files("trial")
    assert f'snapshot_download("{USER}/branched", revision="trial"' in uploaded.files("trial")["README.md"].decode()


# ---------------------------------------------------------------- without an upload


def test_a_dry_run_needs_no_login_and_writes_what_would_be_uploaded(call, encoder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    output = pushed(call, encoder, "--dry-run")
    name = f"{encoder.recipe.name}-{encoder.label}"
    written = sorted(path.name for path in Path("hub", name).iterdir())
    assert written == sorted(line.split()[-1] for line in output.splitlines()[:-1])
    assert output.endswith(f"written to hub/{name}; nothing is uploaded\n")
    assert f"'hub/{name}' exists; delete it first" in refused(call, encoder, "--dry-run")


def test_what_cannot_be_uploaded_is_reported_in_one_line(call, hub, encoder, tmp_path, monkeypatch):
    assert "run folder 'gone' does not exist" in refused(call, Path("gone"))
    assert "--repo: expected owner/name" in refused(call, encoder, "--repo", "a/b/c")
    assert "your token may not write there" in refused(call, encoder, "--repo", "somebody/else")
    run = open_run(Path(shutil.copytree(encoder.path, tmp_path / "copy")))
    run.update_info(RunInfo(status="interrupted"))
    assert "is interrupted, not finished" in refused(call, run)
    hub.add(f"{USER}/public", {"README.md": b""})
    assert "exists and is public" in refused(call, encoder, "--repo", f"{USER}/public", "--private")
    hub.read_only = True
    assert "your token may not write there" in refused(call, encoder)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub does not accept your token; run `hf auth login`" in refused(call, encoder)
    monkeypatch.delenv("HF_TOKEN")
    assert refused(call, encoder) == "not logged in to the hub; run `hf auth login`, or set HF_TOKEN\n"
    hub.is_gone = True
    hubs.is_reachable.cache_clear()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert f"the hub ({hub.address}) cannot be reached" in refused(call, encoder)


def test_a_run_without_weights_and_one_without_its_exported_model_are_refused(
    call, hub, encoder, trained_run, tmp_path
):
    run = Path(shutil.copytree(trained_run.path, tmp_path / "bare"))
    shutil.rmtree(run / "checkpoints")
    assert "has no weights to upload" in refused(call, run)
    run = Path(shutil.copytree(encoder.path, tmp_path / "lost"))
    shutil.rmtree(run / "model")
    assert "has no complete model/; run `cudt train` with the same recipe" in refused(call, run)
    run = Path(shutil.copytree(encoder.path, tmp_path / "damaged"))
    os.truncate(run / "model" / "model.safetensors", 100)
    assert "model.safetensors: damaged" in refused(call, run)
    pushed(call, encoder, "--repo", "again", "--dry-run")
    assert "was downloaded from the hub" in refused(call, Path("hub/again"), "--dry-run")
