from __future__ import annotations

import json

import pytest

from cudt.runs.info import (
    FORMAT,
    BestEpoch,
    EvaluationNote,
    RunInfo,
    SigmaX,
    Subfolder,
    read_finished_info,
    read_info,
    write_info,
)
from cudt.utils.errors import UserError

LAST = Subfolder(weights="last")
#: A file as it is written: key order, indent, signs that are not ASCII, numbers that JSON itself
#: does not have.
WHOLE = """{
  "format": 1,
  "status": "finished",
  "reason": null,
  "recipe": "smoke-llama",
  "objective": "constrained",
  "seed": 0,
  "variant": "1ad4b994",
  "task_version": 1,
  "training_data": "e8eaa7f36381ef8a",
  "data_notes": {
    "cut": 3
  },
  "frozen_weights": "a7f963dbc4e37ce9",
  "metric": {
    "name": "token_accuracy",
    "higher_is_better": true,
    "of_mean": "mean"
  },
  "has_texts": true,
  "has_pictures": false,
  "gamma_train": 0.25,
  "layers": 1,
  "parameters": 15536,
  "reference": 6.0,
  "rates": [
    0.05
  ],
  "device": "cpu",
  "processes": 1,
  "autocast": "no",
  "versions": {
    "cudt": "0.1.0",
    "cooper-optim": "1.0.1"
  },
  "command": "cudt train --recipe smoke-llama --out γ",
  "begun": "2026-11-17T08:53:31+00:00",
  "best": {
    "epoch": 2,
    "validation_loss": NaN
  },
  "sigma_x": {
    "training": 0.19430950878720787,
    "evaluation": 0.19430950878720787
  },
  "feasible": false,
  "monotone": true,
  "verdicts": [
    {
      "layer": 1,
      "loss": 5.87389699577875,
      "allowed": 5.699999999999999,
      "violation": 0.17389699577875103,
      "standard_error": 0.08897927527992809,
      "slack": 0.0606829859316349,
      "verdict": "borderline"
    }
  ],
  "multipliers": {
    "best": [
      0.0910244807600975
    ],
    "last": [
      0.0
    ]
  },
  "ended": "2026-11-17T08:53:31+00:00",
  "saved_model": null,
  "evaluated": {
    "gaussian": {
      "levels": [
        0.0,
        0.7
      ],
      "seeds": [
        0
      ],
      "samples": 0
    }
  },
  "test_data": "b5cf52327d1612ea"
}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a whole run.json."""
    (tmp_path / "run.json").write_text(WHOLE, encoding="utf-8")
    return tmp_path


def values(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def plant(folder, **changes):
    (folder / "run.json").write_text(json.dumps({**values(folder), **changes}), encoding="utf-8")


def without(folder, key):
    kept = {name: value for name, value in values(folder).items() if name != key}
    (folder / "run.json").write_text(json.dumps(kept), encoding="utf-8")


# ---------------------------------------------------------------- writing


def test_a_file_stays_byte_for_byte_when_nothing_changes(folder):
    for changes in (RunInfo(), read_info(folder), read_finished_info(folder)):
        write_info(folder, changes)
        assert (folder / "run.json").read_text(encoding="utf-8") == WHOLE


def test_only_the_keys_that_an_update_sets_are_replaced(folder):
    before = values(folder)
    write_info(folder, RunInfo(status="failed", best=BestEpoch(epoch=3, validation_loss=0.5)))
    after = values(folder)
    assert list(after) == list(before)
    changed = {key for key in after if str(after[key]) != str(before[key])}
    assert changed == {"status", "best"}
    assert after["best"] == {"epoch": 3, "validation_loss": 0.5}


def test_a_new_file_begins_with_its_format(tmp_path):
    write_info(tmp_path, RunInfo(status="running"))
    assert (
        tmp_path / "run.json"
    ).read_text() == f'{{\n  "format": {FORMAT},\n  "status": "running"\n}}\n'


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": "0"}, "seed"),
        ({"feasible": 1}, "feasible"),
        ({"metric": "accuracy"}, "metric: Input should be an object"),
        ({"best": {"epoch": 1.5, "validation_loss": 0.1}}, "best.epoch"),
        (
            {"evaluated": {"gaussian": {"levels": ["0"], "seeds": [0], "samples": 0}}},
            "evaluated.gaussian.levels.0",
        ),
        ({"best": {"epoch": 1}}, "missing key best.validation_loss"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_with_file_and_key(folder, changes, key):
    plant(folder, **changes)
    with pytest.raises(UserError) as error:
        read_info(folder)
    assert str(error.value).startswith(f"{folder / 'run.json'}: damaged ({key}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["recipe", "metric", "verdicts"])
def test_a_finished_run_has_every_key_that_is_read_later(folder, key):
    without(folder, key)
    assert read_info(folder).status == "finished"
    with pytest.raises(UserError, match=rf"run\.json: damaged \(missing key {key}\)"):
        read_finished_info(folder)


@pytest.mark.parametrize("status", ["running", "failed"])
def test_the_info_of_an_unfinished_run_is_refused_with_a_way_to_resume_it(folder, status):
    plant(folder, status=status)
    with pytest.raises(
        UserError, match=f"is {status}, not finished; run `cudt train` .* to resume"
    ):
        read_finished_info(folder)


# ---------------------------------------------------------------- multipliers and other weights


def test_what_was_evaluated_with_other_weights_is_in_a_file_of_its_own(folder):
    before = (folder / "run.json").read_bytes()
    assert read_info(folder, LAST).evaluated == {}
    assert read_info(folder, LAST).test_data == "b5cf52327d1612ea"
    note = EvaluationNote(levels=[0.5], seeds=[0], samples=0)
    sigma_x = SigmaX(training=0.1, evaluation=0.2)
    write_info(folder, RunInfo(evaluated={"uniform": note}, sigma_x=sigma_x), LAST)
    assert (folder / "run.json").read_bytes() == before
    written = json.loads((folder / "last" / "evaluation.json").read_text())
    assert list(written) == ["format", "weights", "sigma_x", "evaluated"]
    assert written["weights"] == "last"
    assert read_finished_info(folder, LAST).evaluated == {"uniform": note}
    assert read_finished_info(folder, LAST).sigma_x == sigma_x
    assert read_finished_info(folder, LAST).recipe == "smoke-llama"
