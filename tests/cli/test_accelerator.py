"""The commands with `--device shadow`, as with `--device cuda`."""

from __future__ import annotations

from tests.conftest import TINY
from tests.shadow.device import active

SETTINGS = [part for setting in TINY for part in ("--set", setting)]


def test_train_and_eval_ood_on_the_accelerator_write_the_cpus_tables(call, tmp_path):
    tables = {}
    for device in ("cpu", "shadow"):
        with active():
            command = ("train", "--recipe", "reviews-ut", *SETTINGS, "--device", device, "--out", device)
            assert call(*command)[0] == 0
            (run,) = (tmp_path / device / "reviews-ut").iterdir()
            assert call("eval-ood", str(run), "--device", device)[0] == 0
        tables[device] = {path.name: path.read_bytes() for path in run.glob("*.csv")}
    assert {"history.csv", "ood.csv", "layers.csv"} <= tables["cpu"].keys()
    assert tables["shadow"] == tables["cpu"]
