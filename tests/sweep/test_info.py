from __future__ import annotations

import json

import pytest

from cudt.sweep.info import ArmInfo, SweepInfo, read_info, write_info
from cudt.utils.errors import UserError

INFO = SweepInfo(
    cudt="1",
    name="mine",
    recipe="reviews-ut",
    measure="grid",
    gammas=[0.0, 0.5],
    direction="maximize",
    arms={"erm": ArmInfo(sampler="seeds", budget=3)},
    settings=[],
    unequal_budgets="wegen γ",
    keys=["seed"],
    log_keys=[],
    finished=2,
    failed=0,
    left=1,
    command="cudt sweep",
)


def test_what_is_written_is_read(tmp_path):
    write_info(tmp_path, INFO)
    assert read_info(tmp_path) == INFO


def test_the_file_has_the_keys_in_the_order_of_earlier_versions(tmp_path):
    write_info(tmp_path, INFO)
    text = (tmp_path / "sweep.json").read_text(encoding="utf-8")
    order = "cudt name recipe reproduces measure gammas direction arms settings unequal_budgets keys log_keys"
    assert list(json.loads(text)) == [*order.split(), "finished", "failed", "pruned", "left", "command"]
    assert '  "unequal_budgets": "wegen γ",\n' in text
    assert text.endswith("}\n")


def test_unknown_keys_are_ignored(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({**INFO.model_dump(), "later": 1}))
    assert read_info(tmp_path) == INFO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"damaged \(not valid JSON"),
        (json.dumps({**INFO.model_dump(), "finished": "two"}), r"damaged \(finished: "),
        (json.dumps(INFO.model_dump(exclude={"keys"})), r"damaged \(keys: Field required\)"),
    ],
    ids=["no JSON", "a wrong type", "a missing key"],
)
def test_a_damaged_file_is_an_error_in_one_line(text, message, tmp_path):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_info(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"sweep\.json: cannot be read"):
        read_info(tmp_path)
