"""Sessions in threads: on a worker, several at once, and two threads at one session."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kit

IDS = [1, 100, 7, 42]


def test_a_session_runs_on_a_worker_thread(session):
    expected = session.run(IDS).logits
    session.reset()
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(session.run, IDS).result().logits, expected)


def test_sessions_of_one_model_in_two_threads_do_not_mix(model):
    prompts = [[3 + 40 * row + i for i in range(20)] for row in range(2)]
    sessions = [model.session(n_ctx=64, flash_attn=flash) for flash in (False, True)]
    expected = []
    for session, prompt in zip(sessions, prompts, strict=True):
        expected.append(session.run(prompt, keep="blk.1.resid"))

    def work(number: int) -> None:
        for turn in range(40):
            sessions[number].reset()
            run = sessions[number].run(prompts[number], keep="blk.1.resid" if turn % 2 else ())
            assert np.array_equal(run.logits, expected[number].logits)
            if turn % 2:
                assert np.array_equal(run["blk.1.resid"], expected[number]["blk.1.resid"])

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, number) for number in range(2)]:
            future.result(timeout=60)


def test_the_lens_may_be_used_by_two_threads(model):
    rows = np.random.default_rng(0).standard_normal((2, 20, 64)).astype(np.float32)
    with ThreadPoolExecutor(2) as pool:
        for many in list(pool.map(lambda i: [model.lens_logits(rows[i]) for _ in range(50)], range(2))):
            assert all(np.array_equal(many[0], one) for one in many)
    assert not np.array_equal(model.lens_logits(rows[0]), model.lens_logits(rows[1]))


def test_a_walk_goes_on_in_another_thread(session):
    expected = session.run(IDS).logits
    session.reset()
    walk = session.steps(IDS)
    next(walk)
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(walk.finish).result().logits, expected)


def test_a_session_in_use_refuses_another_thread(session):
    inside, leave = threading.Event(), threading.Event()

    def wait(value: np.ndarray) -> None:
        inside.set()
        assert leave.wait(30)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, IDS, patch={"embed": wait})
        assert inside.wait(30)
        for action in (lambda: session.run(IDS), lambda: session.steps(IDS), session.reset, session.close):
            with pytest.raises(kit.BusyError, match="middle of a pass"):
                action()
        leave.set()
        logits = running.result(timeout=30).logits
    session.reset()
    assert np.array_equal(session.run(IDS).logits, logits)


@pytest.mark.model
def test_an_interrupt_ends_a_run_soon_and_the_session_is_as_before(demo):
    ids = [100 + i for i in range(400)]
    with demo.session(n_ctx=512, n_batch=512) as session:
        before = session.run(ids[:3]).logits
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.perf_counter())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        timer = threading.Timer(0.3, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            session.run(ids)
        late = time.perf_counter() - sent[0]
        timer.join()
        assert session.tokens == tuple(ids[:3])
        assert late < 1.0  # 0.2 s on an idle machine
        session.reset()
        assert np.array_equal(session.run(ids[:3]).logits, before)


@pytest.mark.model
def test_an_interrupted_step_ends_its_walk_alone(demo):
    with demo.session(n_ctx=512) as session:
        expected = session.run([100, 101, 102]).logits
        session.reset()
        walk = session.steps([100 + i for i in range(500)], level="block")
        timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            for _ in walk:
                pass
        timer.join()
        assert session.tokens == () and session.position is None
        with pytest.raises(kit.ClosedError, match="interrupted"):
            next(walk)
        assert np.array_equal(session.run([100, 101, 102]).logits, expected)
