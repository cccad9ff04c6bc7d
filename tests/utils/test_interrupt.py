from __future__ import annotations

import os
import signal
import threading

import pytest

from cudt.utils.errors import StopRequest

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def received():
    """Handlers that note their signal, in place for a test."""
    noted: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: noted.append(number))
        for number in SIGNALS
    }
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_kept_and_a_ctrl_c_after_it_acts(number, received):
    before = handlers()
    with StopRequest() as stop:
        assert not stop.requested
        assert handlers() != before
        os.kill(os.getpid(), number)
        assert stop.requested
        assert received == []
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
    assert handlers() == before


@pytest.mark.parametrize("number", SIGNALS)
def test_batch_systems_may_repeat_sigterm_while_the_run_is_saved(number, received):
    with StopRequest() as stop:
        for again in (number, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), again)
        assert stop.requested
    assert received == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_a_second_ctrl_c_is_a_keyboard_interrupt():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_it_leaves_signals_alone(received):
    before = handlers()
    seen: list[bool] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.extend([handlers() == before, stop.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, False]
    assert handlers() == before
