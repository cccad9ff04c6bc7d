"""The cost model against counts: operations, weights and bytes of small models of the paper's classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import counters, fits, formulas, machines, memory, paper, stored, tables, traffic, workers
from benchmarks.scale.networks import Work
from benchmarks.scale.postgres import postgres
from benchmarks.scale.shapes import PAPER, Shape
from benchmarks.speed.bench import SkippedError

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"

CAUSAL = Shape("causal", 3, 32, 40, 12, 4, 16, 50, read=5, examples=2)
PATCHES = Shape("dust", 3, 16, 36, 4, examples=2, sequences=3)
SHAPES = [
    Shape("encoder", 3, 32, 40, 12, heads=4, words=50, examples=2),
    Shape("vit", 2, 48, 40, 17, heads=4, sequences=2),
    CAUSAL,
    replace(CAUSAL, recompute=True),
    replace(CAUSAL, lora=False),
    replace(CAUSAL, lora=False, recompute=True),
    Shape("ut", 3, 32, 8, 12, words=50, examples=2, tied=True),
    PATCHES,
    replace(PATCHES, tied=True),
    replace(PATCHES, family="ut_video", tied=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=memory.kind)
def test_the_formulas_give_what_is_counted(shape):
    work, expected = Work(shape), formulas.operations(shape)
    for readouts in (1, shape.layers):
        assert counters.operations(lambda: work.update(readouts)) == expected.update(readouts)  # noqa: B023
    assert counters.operations(work.evaluate) == expected.evaluation(shape.layers)
    weights = formulas.weights(shape)
    assert sum(weight.numel() for weight in work.learned) == weights.trained


def test_the_paper_s_models_have_their_published_sizes():
    assert formulas.weights(PAPER["roberta"]).all == pytest.approx(355e6, rel=0.01)
    assert formulas.weights(PAPER["bert"]).all == pytest.approx(110e6, rel=0.02)
    assert formulas.weights(replace(PAPER["llama"], lora=False)).all == 8_030_261_248
    assert formulas.weights(replace(PAPER["llama-70b"], lora=False)).all == 70_553_706_496


def test_what_is_kept_is_what_the_stored_model_says():
    model = memory.KeptModel(stored.read("memory", memory.Measured))
    for shape in (replace(SHAPES[0], layers=5), replace(CAUSAL, tokens=24), replace(CAUSAL, layers=5, recompute=True)):
        measured = memory.measure(shape)
        assert model.kept(shape) == pytest.approx(measured.kept, rel=0.02)
        assert model.bound(shape) >= measured.peak


def test_the_formula_gives_the_bytes_that_were_measured():
    rows = stored.read("traffic", traffic.Sent)
    assert {(row.way, row.processes) for row in rows} == {("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3)}
    for row in rows:
        formula = traffic.bytes_sent(row.way, row.shape, row.processes, scatter=2)
        assert formula == pytest.approx(row.measured, rel=0.01)


@pytest.mark.slow
def test_processes_send_what_the_formula_says():
    sent = traffic.measure("ddp", replace(CAUSAL, width=64, inner=128, keys=32, layers=2), 2)
    assert sent.formula == pytest.approx(sent.measured, rel=0.02)


def test_the_page_shows_the_stored_measurements(tmp_path):
    copied = tmp_path / "scale.md"
    copied.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    tables.put_all(copied)
    assert copied.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_a_stored_table_is_read_as_it_was_written(tmp_path):
    rows = [memory.Measured("fit", CAUSAL, 12, 34), memory.Measured("check", PATCHES, 5, 6)]
    stored.write("memory", rows, tmp_path)
    assert stored.read("memory", memory.Measured, tmp_path) == rows


def test_the_most_expensive_job_bounds_the_wall_time_unless_it_is_split():
    jobs = [paper.Job(60.0, 8), *[paper.Job(1.0, 8)] * 20]
    assert paper.wall_time(jobs, 1, 1.0) == pytest.approx(80)
    assert paper.wall_time(jobs, 4, 1.0) == pytest.approx(60)
    assert paper.wall_time(jobs, 4, 1.0, split=True) == pytest.approx(20)


def test_communication_takes_the_share_that_the_bytes_say():
    shape = replace(PAPER["llama"], examples=4, lora=False)
    one = fits.Shared("", "ddp", shape, machines.FP32)
    update = formulas.operations(shape).update(32) / 12e12
    sent = 2 * 0.5 * 4 * 8_030_261_248 / 12.5e9
    assert one.share(2, 12.5e9) == pytest.approx(sent / (sent + update / 2))
    assert one.reaches(1e-9, 12.5e9) == 2


@pytest.mark.parametrize("loop", [pytest.param("optuna", marks=pytest.mark.slow), "cudt"])
def test_simulated_workers_get_every_trial_once(loop):
    try:
        with postgres() as server:
            outcome = workers.simulate(workers.Case(4, 0.5, 2.5, "together", loop=loop), server)
    except SkippedError as reason:
        pytest.skip(str(reason))
    assert outcome.errors == 0
    assert 4 <= outcome.trials <= 4 * 6
    assert 0 < outcome.median <= outcome.late <= outcome.worst
    assert outcome.database_cpu > 0
