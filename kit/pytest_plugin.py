"""A pytest plugin: tests that fail when ggml memory leaks or grows too large.

- ``@pytest.mark.no_ggml_leaks``: nothing that ggml allocated in the test is left after it;
- ``@pytest.mark.limit_ggml_memory("64 MB")``: of what the test allocated, no more was live at once;
- fixture ``ggml_memory``: a `kit.Tracker` that is active during the test.

All see every copy of ggml in the process. kit itself is loaded only by tests that use one of them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.memory import Tracker


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "no_ggml_leaks: fail if ggml memory allocated in the test is left after it")
    config.addinivalue_line("markers", "limit_ggml_memory(limit): fail if the test allocates more ggml memory")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a marked test under a tracker; what it did wrong itself comes first."""
    leaks = item.get_closest_marker("no_ggml_leaks")
    limit = item.get_closest_marker("limit_ggml_memory")
    if leaks is None and limit is None:
        return (yield)
    from kit.memory import Tracker

    most = None if limit is None else _limit_of(limit)
    with Tracker() as tracker:
        result = yield
        gc.collect()
    report = tracker.report()
    wrong = []
    for check in (
        (lambda: report.assert_peak(most)) if most is not None else None,
        report.assert_no_leaks if leaks is not None else None,
    ):
        try:
            if check is not None:
                check()
        except AssertionError as error:
            wrong.append(str(error))
    if wrong:
        raise AssertionError("\n".join(wrong))
    return result


def _limit_of(mark: pytest.Mark) -> str:
    """Return the limit a marker sets; what it says wrongly fails the test before it runs."""
    from kit.errors import ArgumentError
    from kit.units import parse_bytes

    try:
        (limit,) = (*mark.args, *mark.kwargs.values())
        parse_bytes(limit)
        return str(limit)
    except (ArgumentError, ValueError) as error:
        given = ", ".join(map(repr, mark.args))
        pytest.fail(f'limit_ggml_memory({given}): give one limit, such as "64 MB" ({error})', pytrace=False)


@pytest.fixture
def ggml_memory() -> Iterator[Tracker]:
    """A tracker that sees every ggml allocation of the test; ``ggml_memory.report()`` says what so far."""
    from kit.memory import Tracker

    with Tracker() as tracker:
        yield tracker
