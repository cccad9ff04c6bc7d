"""Many workers on one PostgreSQL: trials that sleep, everything else as in a sweep.

Each worker is a thread with a study, a cache and a connection of its own, as a process elsewhere would have; a few
processes hold them all, because a thousand Python processes do not fit on a small machine. A worker runs Optuna's own
loop (`study.optimize`), with heartbeats, on trials that were put into the queue before or are made when asked for. The
queue time is from the end of a trial's function to the start of the worker's next one.

Three situations are simulated. In `running` the sweep is under way: every worker has a trial, of which a random part is
left. In `together` all workers start at the same moment. In `idle` all trials have workers elsewhere, and these wait.
With `loop="cudt"` the workers run the loop of cudt.sweep.worker instead of Optuna's alone.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import socket
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import TrialState

from benchmarks.scale import own_loop
from benchmarks.scale.own_loop import OwnWorker
from benchmarks.scale.postgres import Postgres
from benchmarks.scale.worker_log import Log

#: Threads in a process.
_THREADS = 50
_STUDY = "simulated"
#: Threads of the gRPC proxy, each with a connection to the database.
_PROXY_THREADS = 20


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    workers: int
    trial_seconds: float
    seconds: float
    """How long the simulation runs."""
    start: Literal["running", "together", "idle"] = "running"
    queue: Literal["enqueued", "new"] = "enqueued"
    """Whether trials wait in the storage, or are made when a worker asks for one."""
    storage: Literal["direct", "grpc"] = "direct"
    heartbeat: int = 60
    """Seconds between heartbeats."""
    waiting: int = 0
    """Trials in the queue besides those that are needed."""
    studies: int = 1
    """Studies that the workers are spread over."""
    shuffled: bool = False
    """Whether a worker takes any waiting trial instead of the first."""
    loop: Literal["optuna", "cudt"] = "optuna"

    @property
    def running(self) -> int:
        """Trials of each study that run when the simulation starts."""
        return 0 if self.start == "together" else -(-self.workers // self.studies)

    @property
    def enqueued(self) -> int:
        """Trials of each study that wait: as many as the workers can run, and `waiting`."""
        if self.queue == "new" or self.start == "idle":
            return 0
        return round(self.workers / self.studies * (1 + self.seconds / self.trial_seconds)) + self.waiting


@dataclass(frozen=True)
class Outcome:
    """What a simulation measured; times in seconds."""

    case: Case
    trials: int
    span: float
    median: float
    """The queue time of half of the trials; after a common start, of the first trial of each worker."""
    late: float
    """The queue time that 95 % do not exceed."""
    worst: float
    database_cpu: float
    """CPU time of the database's processes per trial."""
    client_cpu: float
    """CPU time of the workers per trial, and of the gRPC proxy."""
    connections: int
    database_bytes: int
    errors: int

    @property
    def rate(self) -> float:
        """Trials that begin per second; after a common start, until the last one has begun."""
        return self.trials / (self.worst if self.case.start == "together" else self.span)

    def cores(self, cpu: float) -> float:
        """Cores that are busy with a CPU time per trial."""
        return cpu * max(1, self.trials) / self.span


def simulate(case: Case, server: Postgres) -> Outcome:
    """Run one case on an empty database."""
    url = server.new_database()
    _prepare(case, url)
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        proxy = stack.enter_context(_Proxy(context, url)) if case.storage == "grpc" else None
        port = proxy.port if proxy else 0
        parts = [min(_THREADS, case.workers - start) for start in range(0, case.workers, _THREADS)]
        ready, go = context.Barrier(len(parts) + 1), context.Event()
        results: Any = context.Queue()
        processes = [
            context.Process(target=_process, args=(case, url, port, number, count, ready, go, results))
            for number, count in enumerate(parts)
        ]
        for process in processes:
            process.start()
        ready.wait(timeout=300)
        before, connections = _cpu_of_server(server), _connections(url)
        before_proxy = _cpu_of(proxy.process_id) if proxy else 0.0
        go.set()
        found = [results.get(timeout=600) for _ in processes]
        used = _cpu_of_server(server) - before
        found.append(([], _cpu_of(proxy.process_id) - before_proxy if proxy else 0.0))
        for process in processes:
            process.join()
    return _outcome(case, found, used, connections, _size(url))


def _prepare(case: Case, url: str) -> None:
    """Make the studies and their waiting trials."""
    storage = RDBStorage(url, heartbeat_interval=case.heartbeat)
    names = [f"{_STUDY}{number}" for number in range(case.studies)]
    ids = [optuna.create_study(storage=storage, study_name=name)._study_id for name in names]
    for study in ids:
        insert(url, study, case.running, case.enqueued)
    storage.engine.dispose()


def insert(url: str, study: int, running: int, waiting: int) -> None:
    """Put trials into a study as `enqueue_trial` does, in two statements instead of one transaction for each."""
    trials = sqlalchemy.text(
        "INSERT INTO trials (number, study_id, state, datetime_start) "
        "SELECT n, :study, (CASE WHEN n < :running THEN 'RUNNING' ELSE 'WAITING' END)::trialstate, now() "
        "FROM generate_series(0, :last) n"
    )
    fixed = sqlalchemy.text(
        "INSERT INTO trial_system_attributes (trial_id, key, value_json) "
        "SELECT trial_id, 'fixed_params', '{\"cell\": ' || number || '}' FROM trials WHERE study_id = :study"
    )
    cell = sqlalchemy.text(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) "
        "SELECT trial_id, 'cell', number::text FROM trials WHERE study_id = :study"
    )
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(trials, {"study": study, "running": running, "last": running + waiting - 1})
        connection.execute(fixed, {"study": study})
        connection.execute(cell, {"study": study})
    engine.dispose()


class _Proxy:
    """A gRPC proxy in a process of its own."""

    def __init__(self, context: Any, url: str) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self._process = context.Process(target=_serve, args=(url, self.port), daemon=True)

    def __enter__(self) -> _Proxy:
        self._process.start()
        return self

    @property
    def process_id(self) -> int:
        return int(self._process.pid)

    def __exit__(self, *error: Any) -> None:
        self._process.terminate()
        self._process.join()


def _serve(url: str, port: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    warnings.simplefilter("ignore")
    pool = {"pool_size": _PROXY_THREADS, "max_overflow": 10}
    storage = optuna.storages.get_storage(RDBStorage(url, engine_kwargs=pool))
    optuna.storages.run_grpc_proxy_server(
        storage, host="127.0.0.1", port=port, thread_pool=ThreadPoolExecutor(_PROXY_THREADS)
    )


# ---------------------------------------------------------------- a process of workers


def _process(case: Case, url: str, port: int, number: int, count: int, ready: Any, go: Any, results: Any) -> None:
    """Run some workers, and put what they did into a queue."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    numbers = range(number * _THREADS, number * _THREADS + count)
    workers: list[_Worker | OwnWorker]
    if case.loop == "cudt":
        own_loop.prepare()
        workers = [OwnWorker(case, url, one) for one in numbers]
    else:
        make = _storages(case, url, port, count)
        workers = [_Worker(case, make, one) for one in numbers]
    threads = [threading.Thread(target=worker.run, args=(go,)) for worker in workers]
    for thread in threads:
        thread.start()
    for worker in workers:
        worker.is_ready.wait()
    ready.wait(timeout=300)
    before = _own_cpu()
    for thread in threads:
        thread.join()
    results.put(([(worker.free, worker.busy, worker.errors) for worker in workers], _own_cpu() - before))


def _storages(case: Case, url: str, port: int, count: int) -> Callable[[], BaseStorage]:
    """A function that gives each worker a storage with a cache of its own."""
    if case.storage == "grpc":
        from optuna.storages import GrpcStorageProxy

        GrpcStorageProxy(host="127.0.0.1", port=port).wait_server_ready(60)
        return lambda: GrpcStorageProxy(host="127.0.0.1", port=port)
    # A connection for each worker, and for the heartbeats of some at the same time.
    pool = {"pool_size": count, "max_overflow": count, "pool_timeout": 120}
    shared = RDBStorage(
        url,
        engine_kwargs=pool,
        heartbeat_interval=case.heartbeat,
        skip_table_creation=True,
        skip_compatibility_check=True,
    )
    # All are opened now, as those of a thousand processes would be.
    for connection in [shared.engine.connect() for _ in range(count)]:
        connection.close()
    return lambda: optuna.storages.get_storage(shared)


class _Worker(Log):
    """A worker that runs Optuna's loop."""

    def __init__(self, case: Case, make: Callable[[], BaseStorage], number: int) -> None:
        super().__init__()
        self._case, self._make, self._number = case, make, number

    def run(self, go: Any) -> None:
        case = self._case
        storage = self._make()
        name = f"{_STUDY}{self._number % case.studies}"
        study = optuna.load_study(study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler())
        if case.shuffled:
            _shuffle(storage)
        number = self._number // case.studies
        first = storage.get_trial_id_from_study_id_trial_number(study._study_id, number)
        self.is_ready.set()
        go.wait()
        self.end = time.time() + case.seconds
        if case.start == "running":
            with get_heartbeat_thread(first, storage):
                self.sleep(random.random() * case.trial_seconds)
            if time.time() < self.end:
                study.tell(number, 0.0)
        self.free.append(time.time())
        while time.time() < self.end:
            try:
                study.optimize(self._trial, timeout=self.end - time.time())
            except Exception:
                # What a worker cannot do, such as get a connection, is part of the result.
                self.errors += 1
                time.sleep(1)

    def _trial(self, trial: optuna.Trial) -> float:
        self.work(self._case.trial_seconds)
        return trial.suggest_float("cell", 0, 1e6)


def _shuffle(storage: Any) -> None:
    """Give waiting trials in any order, so that workers that ask at the same time do not all try the same one."""
    ordered = storage.get_all_trials

    def shuffled(*arguments: Any, **options: Any) -> list[Any]:
        found = ordered(*arguments, **options)
        return random.sample(found, len(found)) if options.get("states") == (TrialState.WAITING,) else found

    storage.get_all_trials = shuffled


# ---------------------------------------------------------------- what was measured


def _outcome(case: Case, found: list[Any], used: float, connections: int, size: int) -> Outcome:
    workers = [worker for part, _ in found for worker in part]
    waits, trials = [], 0
    for free, busy, _ in workers:
        taken = busy[:1] if case.start == "together" else busy
        waits += [start - since for since, start in zip(free, taken, strict=False)]
        trials += len(busy)
        if case.start == "together" and not busy:
            # Whoever never got a trial waited for the whole time.
            waits.append(case.seconds)
    ordered = sorted(waits) or [float("nan")]
    return Outcome(
        case,
        trials,
        case.seconds,
        statistics.median(ordered),
        ordered[int(0.95 * (len(ordered) - 1))],
        ordered[-1],
        used / max(1, trials),
        sum(cpu for _, cpu in found) / max(1, trials),
        connections,
        size,
        sum(errors for _, _, errors in workers),
    )


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_of_server(server: Postgres) -> float:
    """CPU seconds of the server's processes, and of those that have ended."""
    children = Path(f"/proc/{server.process_id}/task/{server.process_id}/children").read_text().split()
    return sum(_cpu_of(process) for process in (server.process_id, *map(int, children)))


def _cpu_of(process: int) -> float:
    """CPU seconds of a process and of its ended children; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # After the name: user and system time of the process, then of its ended children.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _query(url: str, query: str) -> int:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        answer = connection.execute(sqlalchemy.text(query)).scalar_one()
    engine.dispose()
    return int(answer)


def _connections(url: str) -> int:
    return _query(url, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")


def _size(url: str) -> int:
    return _query(url, "SELECT pg_database_size(current_database())")
