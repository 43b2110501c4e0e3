"""Tiny models in files, made once, and the demo model, loaded once."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kit
from kit.models.weights import sections

from . import tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    """Return the path of the tiny model of one of `tiny.KINDS`, written when first asked for."""
    folder = tmp_path_factory.mktemp("tiny")

    def path(kind: str) -> pathlib.Path:
        target = folder / f"{kind}.gguf"
        if not target.exists():
            tiny.write(target, tiny.Tiny(**tiny.KINDS[kind]))
        return target

    return path


@pytest.fixture
def model(tiny_path: Callable[[str], pathlib.Path]) -> Iterator[kit.Model]:
    """A tiny model on a backend of its own, one thread."""
    with kit.load(tiny_path("grouped"), n_threads=1) as loaded:
        yield loaded


@pytest.fixture
def session(model: kit.Model) -> kit.Session:
    """A session of 512 cells with it; closed with the model."""
    return model.session(n_ctx=512)


@pytest.fixture
def flash(model: kit.Model) -> kit.Session:
    """The same with flash attention."""
    return model.session(n_ctx=512, flash_attn=True)


@pytest.fixture(scope="module")
def demo(demo_model_path: pathlib.Path) -> Iterator[kit.Model]:
    """The demo model on one thread, for spinning threads starve each other on a busy machine; its lens is made here, so
    that no test seems to leave one behind.
    """
    with kit.load(demo_model_path, n_threads=1) as loaded:
        loaded.lens_logits(np.zeros((1, loaded.config.n_embd), np.float32))
        yield loaded


@pytest.fixture
def split(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """A tiny model in four parts of six tensors each at most, beside `whole.gguf`."""
    tiny.write(tmp_path / "whole.gguf", tiny.Tiny())
    tiny.write(tmp_path / "m.gguf", tiny.Tiny(), split=6)
    return [tmp_path / f"m-{number:05}-of-00004.gguf" for number in range(1, 5)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a tiny model is many reads."""
    monkeypatch.setattr(sections, "CHUNK_BYTES", 4096)


@pytest.fixture(autouse=True)
def nothing_is_leaked() -> Iterator[None]:
    """What a test and its own fixtures opened is closed when they are done; wider fixtures were set up before."""
    before = _live()
    yield
    if _live() != before:
        gc.collect()
    assert [text for text in _live() if text not in before] == []


def _live() -> list[str]:
    """What is live but for compute buffers, which the scheduler of a shared backend keeps and grows."""
    return [str(resource) for resource in kit.memory.live() if resource.kind not in ("scheduler", "allocator")]
