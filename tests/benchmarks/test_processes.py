"""Workers and cold processes, with small Python programs in their place."""

import pathlib
import sys

import pytest

import benchmarks.worker
from benchmarks.processes import ProcessFailed, peak_memory, start_to_first_byte
from benchmarks.worker import Worker, WorkerError

ADDER = """
import sys
sys.path.insert(0, sys.argv[1])
from worker import serve
serve({"add": lambda a, b: a + b, "noisy": lambda: print("more noise"), "fail": lambda: 1 / 0}, {"ready": True})
"""


@pytest.fixture
def adder() -> Worker:
    return Worker(sys.executable, "-c", ADDER, _folder())


def _folder() -> str:
    return str(pathlib.Path(benchmarks.worker.__file__).parent)


def test_a_worker_answers_many_questions(adder: Worker) -> None:
    with adder:
        assert adder.ready == {"ready": True}
        assert [adder.ask("add", a=n, b=1) for n in range(3)] == [1, 2, 3]


def test_what_a_worker_prints_is_not_taken_for_an_answer(adder: Worker) -> None:
    with adder:
        assert adder.ask("noisy") is None
        assert adder.ask("add", a=1, b=1) == 2


def test_a_worker_that_fails_says_why(adder: Worker) -> None:
    with adder, pytest.raises(WorkerError, match=r"(?s)ended with 1:.*ZeroDivisionError"):
        adder.ask("fail")


def test_a_worker_that_never_gets_ready_says_why() -> None:
    with pytest.raises(WorkerError, match=r"(?s)ended with 7:\nno such model"):
        Worker(sys.executable, "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(7)")


def test_the_first_byte_comes_before_the_end() -> None:
    done = start_to_first_byte([sys.executable, "-c", "print('Paris', flush=True); import time; time.sleep(0.3)"])
    assert done.text == "Paris\n"
    assert 0 < done.first_s <= done.whole_s - 0.25


@pytest.mark.parametrize("end", ["raise SystemExit('gone')", "pass"])
def test_silence_is_a_failure(end: str) -> None:
    with pytest.raises(ProcessFailed):
        start_to_first_byte([sys.executable, "-c", end])


def test_peak_memory_sees_what_was_freed_again() -> None:
    program = "import time; held = b'x' * {n}; time.sleep(0.2); del held; time.sleep(0.2)"
    little, much = (peak_memory([sys.executable, "-c", program.format(n=n)]) for n in (1, 64 << 20))
    assert 60 << 20 < much.resident_bytes - little.resident_bytes < 70 << 20
    assert 60 << 20 < much.anonymous_bytes - little.anonymous_bytes < 70 << 20
    assert much.file_bytes > 0


def test_peak_memory_of_a_failing_process_is_an_error() -> None:
    with pytest.raises(ProcessFailed, match="gone"):
        peak_memory([sys.executable, "-c", "raise SystemExit('gone')"])
