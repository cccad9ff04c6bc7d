"""The cost model against counts: operations, weights and bytes of small models of the paper's classes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import counters, fits, formulas, machines, memory, paper, stored, tables, traffic, workers
from benchmarks.scale.networks import Work
from benchmarks.scale.postgres import postgres
from benchmarks.scale.shapes import PAPER, Shape
from benchmarks.speed.bench import SkippedError
from cudt.config import recipe
from cudt.reproduce import scale

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
    assert [(row.way, row.shape, row.processes, row.bytes) for row in rows] == traffic.cases(quick=False)
    for row in rows:
        formula = traffic.bytes_sent(row.way, row.shape, row.processes, scatter=2, layers=row.bytes)
        assert formula == pytest.approx(row.measured, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "layers"), [("ddp", 4), ("fsdp", 4), ("fsdp", 2)])
def test_processes_send_what_the_formula_says(way, layers):
    shape = replace(CAUSAL, width=128, inner=256, keys=64, layers=2, words=400, lora=way == "ddp")
    sent = traffic.measure(way, shape, 2, layers)
    assert sent.formula == pytest.approx(sent.measured, rel=0.02)


def test_the_page_shows_the_stored_measurements(tmp_path):
    copied = tmp_path / "scale.md"
    copied.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    tables.put_all(copied)
    assert copied.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_the_numbers_in_the_text_follow_from_the_tables():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    experiments = {one.name: one for one in paper.priced(tables.lengths(stored.FOLDER))}
    total = sum(one.operations for one in experiments.values())
    vit = experiments["gamma-train-vit · shanghaitech-vit"].operations / total
    assert f"leave out ShanghaiTech with ViT, which is {100 * vit:.0f} % of the paper" in text
    small = sum(one.operations for name, one in experiments.items() if name.endswith(("-dust", "-dust-9", "-ut")))
    assert f"they are {100 * small / total:.0f} % of the whole" in text
    jobs = paper.all_jobs(list(experiments.values()))
    assert f"or they alone take {paper.longest(jobs, machines.FP32.speed) / 86400:.2g} days" in text
    runs = sum(one.runs for one in experiments.values())
    minutes = total / machines.FP32.speed / 60 / runs
    assert f"The paper's runs take {round(minutes, -1):.0f} minutes on average" in text
    shared = {(one.name, one.precision.name): one for one in tables.shared(stored.FOLDER)}
    vits = [shared["shanghaitech-vit, DDP", name].share(8, 300e9) for name in ("A100, fp32", "A100, bf16")]
    assert f"with NVLink loses {tables.percent(vits[0])}. In bf16" in text
    assert f"it loses {tables.percent(vits[1])}." in text
    roberta = shared["imdb-roberta, DDP", "A100, fp32"]
    assert f"on 16 GPUs loses {tables.percent(roberta.share(16, 300e9))} in fp32 with NVLink" in text
    llama = shared["alpaca-llama, DDP", "A100, bf16"]
    assert f"costs at most {tables.percent(llama.share(4, min(machines.LINKS.values())))}" in text
    assert f"are {4 * formulas.weights(llama.shape).trained / 1e6:.0f} MB" in text
    assert f"the recipe's batch of 4 has about {round(4 * llama.shape.tokens, -1)}" in text


def test_the_command_of_the_page_trains_runs_of_the_full_scale():
    text = PAGE.read_text(encoding="utf-8")
    (given,) = re.findall(r"--recipe (\S+) .*\n +--objective (\w+) --set (\S+) --out outputs/reproduce-full\n", text)
    (gammas,) = re.findall(r"γ_train = ([\d., ]+)\.", text)
    command = {
        recipe.load("shanghaitech-vit", [f"noise.gamma_train={gamma}"], objective=objective).identity()
        for objective in ("constrained", "erm")
        for gamma in gammas.split(", ")
    }
    experiments = {one.name: one for one in scale.load("full").experiments}
    sweep = experiments["gamma-train-vit · shanghaitech-vit"].sweep
    wanted = {
        sweep.recipe(setting, arm, sweep.first_parameters(arm)).identity()
        for setting in sweep.settings
        for arm in sweep.search.arms
    }
    assert command == wanted
    assert recipe.load(given[0], [given[2]], objective=given[1]).identity() in wanted


def test_gathered_weights_and_their_gradients_count_on_every_card():
    shape = replace(PAPER["llama-70b"], lora=False)
    one, model = fits.Setup("", shape), memory.KeptModel(stored.read("memory", memory.Measured))
    # By hand: a layer, and embeddings with head and the final norm.
    maps = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672
    layer, outside = maps + 2 * 8192, 2 * 128_256 * 8192 + 8192
    shards = 16 * (80 * layer + outside) / 64
    assert one.sharded(model, 64) - one.work(model) == pytest.approx(shards + 4 * (3 * layer + 2 * outside))
    assert one.sharded(model, 1) == one.total(model)
    adapted = fits.Setup("", replace(shape, lora=True), 2)
    adapters = 6 * (4 * 8192 + 2 * (8192 + 1024) + 3 * (8192 + 28_672))
    shards = (2 * (80 * layer + outside) + 16 * 80 * adapters) / 8
    gathered = 2 * (2 * (layer + adapters) + outside) + 4 * adapters
    assert adapted.sharded(model, 8) - adapted.work(model) == pytest.approx(shards + gathered)


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


def test_rates_and_busy_cores_of_workers():
    under_way = workers.Outcome(workers.Case(10, 5, 20), 40, 20, 0.5, 1, 2, 0.05, 0.1, 11, 10**7, 0)
    assert under_way.rate == pytest.approx(2)
    assert under_way.cores(under_way.database_cpu) == pytest.approx(0.1)
    # After a common start: 8 trials within 2 seconds. Two of ten workers got none.
    together = replace(under_way, case=workers.Case(10, 300, 20, "together"), trials=8)
    assert together.rate == pytest.approx(4)
    assert tables.row(together)[2] == "all start at once; 2 workers got none"


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
