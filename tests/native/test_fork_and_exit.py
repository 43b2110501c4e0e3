"""Processes that fork, and processes that end with everything still open: exit code 0, never a crash."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

SETUP = """
import gc, os, signal, sys, threading, time
import numpy as np
import kit

backend = kit.Backend(n_threads=2)
context = kit.Context(backend)
w, x = context.input((64, 48), "f32", name="w"), context.input((16, 48), "f32", name="x")
graph = context.graph(x @ w.T)

def right(seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((64, 48), dtype=np.float32), rng.standard_normal((16, 48), dtype=np.float32)
    return np.allclose(graph.compute(w=a, x=b).numpy(), b @ a.T, atol=1e-3)

assert right()
"""

MODEL = """
import kit, sys
model = kit.load(sys.argv[1], n_threads=2, progress=False)
session = model.session(n_ctx=128, n_batch=32)
greedy = kit.Sampler(temperature=0)
"""


def _code(*parts: str) -> str:
    import textwrap

    return "\n".join(textwrap.dedent(part) for part in parts)


def test_a_forked_child_computes_and_the_parent_goes_on(child: Any) -> None:
    done = child(
        _code(
            SETUP,
            """
            for i in range(20):
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if right(i) and right(i + 1) else 3)
                assert right(i)
                assert os.waitpid(pid, 0)[1] == 0
            print("parent right:", right(99))
            """,
        )
    )
    assert done.stdout == "parent right: True\n"


def test_a_forked_child_ends_cleanly_through_the_interpreters_exit(child: Any) -> None:
    done = child(
        _code(
            SETUP,
            """
            pid = os.fork()
            if pid == 0:
                print("child", right(1), flush=True)
                sys.exit(7)
            print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), right(2))
            """,
        )
    )
    assert sorted(done.stdout.splitlines()) == ["child True", "parent 7 True"]


def test_aborts_and_interrupts_work_in_a_forked_child(child: Any) -> None:
    child(
        _code(
            SETUP,
            """
            table, ids = context.tensor((10, 64), "f32", name="table"), context.input((64,), "i32", name="ids")
            table.set(np.ones((10, 64), np.float32))
            bad = context.graph(kit.ops.get_rows(table, ids) @ table.T)
            indices = np.zeros(64, np.int32)
            indices[63] = 1000

            def refused():
                try:
                    bad.compute(ids=indices)
                except kit.GgmlAbort:
                    return True

            assert refused() and right()
            pid = os.fork()
            if pid == 0:
                ok = all(refused() and right(i) for i in range(20))
                y = context.input((64, 64), "f32", name="y")
                z = y
                for _ in range(2_000):
                    z = z + y
                long = context.graph(z)
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                stopped = False
                try:
                    for _ in range(1000):
                        long.compute(y=np.ones((64, 64)))
                except KeyboardInterrupt:
                    stopped = True
                os._exit(0 if ok and stopped and right() else 3)
            assert os.waitpid(pid, 0)[1] == 0 and refused() and right()
            """,
        )
    )


def test_a_fork_while_another_thread_computes(child: Any) -> None:
    child(
        _code(
            SETUP,
            """
            stop = threading.Event()
            def work():
                while not stop.is_set():
                    assert right()
            thread = threading.Thread(target=work)
            thread.start()
            for i in range(10):
                time.sleep(0.01)
                pid = os.fork()
                if pid == 0:
                    with kit.Backend(n_threads=2) as other:
                        c = kit.Context(other)
                        v = c.input((4,), "f32", name="v")
                        os._exit(0 if c.graph(v + v).compute(v=[1, 2, 3, 4]).numpy().tolist() == [2, 4, 6, 8] else 3)
                assert os.waitpid(pid, 0)[1] == 0
            stop.set()
            thread.join()
            """,
        )
    )


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(child: Any, tmp_path: pathlib.Path, method: str) -> None:
    (tmp_path / "work_in_children.py").write_text(
        "import numpy as np, kit\n"
        "def double(i):\n"
        "    with kit.Backend(n_threads=2) as backend:\n"
        "        context = kit.Context(backend)\n"
        "        x = context.input((4,), 'f32', name='x')\n"
        "        return context.graph(x + x).compute(x=np.full(4, i)).numpy().tolist()\n"
    )
    done = child(
        _code(
            SETUP,
            """
            import multiprocessing
            from work_in_children import double
            with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
                print(pool.map(double, range(4)))
            assert right()
            """,
        ),
        method,
        PYTHONPATH=str(tmp_path),
    )
    assert done.stdout.strip() == str([[2.0 * i] * 4 for i in range(4)])


ENDINGS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(0)", 0),
    "sys.exit with a code": ("sys.exit(5)", 5),
    "an unhandled exception": ("raise RuntimeError('on purpose')", 1),
    "sys.exit inside a function that watches": (
        """
        from kit.core.watch import Watch, Watched
        y = graph.outputs[0]
        Watch([Watched(y, call=lambda t: sys.exit(0))]).compute(graph)
        """,
        0,
    ),
    "a reference cycle that holds everything": ("loop = [backend, context, graph]; loop.append(loop)", 0),
    "a daemon thread that computes": (
        """
        threading.Thread(target=lambda: [right(i) for i in range(10**9)], daemon=True).start()
        time.sleep(0.2)
        """,
        0,
    ),
    "an exit handler that computes": ("import atexit; atexit.register(lambda: print('late', right()))", 0),
    "a finalizer that computes": (
        """
        import weakref
        class Late: pass
        late = Late()
        weakref.finalize(late, lambda: print("late", right()))
        """,
        0,
    ),
    "a __del__ at the very end": (
        """
        class Late:
            def __init__(self): self.keep = (right, graph, backend)
            def __del__(self): self.keep[0]()
        sys.late = Late()
        """,
        0,
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_ending_with_a_live_backend(child: Any, how: str) -> None:
    ending, returncode = ENDINGS[how]
    done = child(_code(SETUP, "print('ready', flush=True)", ending), returncode=returncode, timeout=60)
    assert done.stdout.startswith("ready\n")
    assert "Fatal" not in done.stderr


@pytest.mark.model
@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "tokens = session.generate('Once upon a time', sampler=greedy); next(tokens); next(tokens)",
        "walk = session.steps('Once upon a time'); next(walk); next(walk)",
        "walk = session.steps('Hello')\nfor step in walk:\n    if step.name == 'blk.3.resid': sys.exit(0)",
        "cycle = [session, model]; cycle.append(cycle); del session, model",
        "session.run('Hello', patch={'blk.3.resid': lambda v: sys.exit(0)})",
    ],
    ids=["a session", "a paused generator", "a paused walk", "sys.exit in a walk", "a cycle", "sys.exit in a patch"],
)
def test_ending_with_a_live_model(child: Any, demo_model_path: pathlib.Path, ending: str) -> None:
    done = child(_code(MODEL, ending), demo_model_path)
    assert "Traceback" not in done.stderr
