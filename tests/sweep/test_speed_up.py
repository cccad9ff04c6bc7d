"""Eight workers are eight times as fast as one, if trials only take time."""

from __future__ import annotations

import pytest

from cudt.sweep.storage import own_storage
from tests.sweep.machines import Machines, machines
from tests.sweep.searches import seeds, sweep_of

#: Seconds that a trial sleeps, and the trials of each worker.
PACE, EACH = 2.0, 8


def trials_per_second(made: Machines, workers: int) -> float:
    """While every worker has something to do: from the end of the first trial of the last one to the last start."""
    made.begin()
    for number in range(workers):
        made.join(f"worker-{number}")
    assert set(made.wait().values()) == {0}
    ends = sorted(made.notes("ends"), key=lambda one: one.time)
    started = max(next(one.time for one in ends if one.machine == f"worker-{number}") for number in range(workers))
    last = max(one.time for one in made.notes("begins"))
    return sum(started < one.time <= last for one in ends) / (last - started)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["postgresql", "sqlite"])
def test_eight_workers_are_at_least_seven_times_as_fast_as_one(storage, postgres_url, tmp_path):
    speeds = {}
    for workers in (1, 8):
        folder = tmp_path / str(workers)
        folder.mkdir()
        sweep = sweep_of(folder, name=f"of-{workers}", arms={"erm": seeds(EACH * workers)})
        url = postgres_url if storage == "postgresql" else own_storage(folder)
        with machines(sweep, url, folder / "machines", "paced", PACE) as made:
            speeds[workers] = trials_per_second(made, workers)
    print(storage, {workers: round(speed, 2) for workers, speed in speeds.items()}, round(speeds[8] / speeds[1], 2))
    assert speeds[8] >= 7 * speeds[1]
