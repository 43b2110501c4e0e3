"""ggml's aborts on the calling thread are exceptions: raw calls, past every check that Python makes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kit
from kit.core.native import ffi, lib

Refusal = tuple[Callable[..., Any], tuple[Any, ...]]


@pytest.fixture
def pool() -> Iterator[Any]:
    made = lib.ggml_init({"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": True})
    yield made
    lib.ggml_free(made)


@pytest.fixture
def refusals(pool: Any) -> Iterator[dict[str, Refusal]]:
    """Calls that ggml refuses with an abort, and nothing is wrong with the process afterwards."""
    a = lib.ggml_new_tensor_2d(pool, lib.GGML_TYPE_F32, 4, 3)
    b = lib.ggml_new_tensor_2d(pool, lib.GGML_TYPE_F32, 5, 2)
    full = lib.ggml_init({"mem_size": 400, "mem_buffer": ffi.NULL, "no_alloc": True})
    lib.ggml_new_tensor_1d(full, lib.GGML_TYPE_F32, 4)
    keys = lib.gguf_init_empty()
    lib.gguf_set_val_u32(keys, b"a number", 3)
    yield {
        "mul_mat of wrong shapes": (lib.ggml_mul_mat, (pool, a, b)),
        "add of wrong shapes": (lib.ggml_add, (pool, a, b)),
        "reshape to another size": (lib.ggml_reshape_2d, (pool, a, 7, 7)),
        "permute twice onto one axis": (lib.ggml_permute, (pool, a, 0, 0, 1, 2)),
        "a tensor in a full pool": (lib.ggml_new_tensor_1d, (full, lib.GGML_TYPE_F32, 4)),
        "a number read as text": (lib.gguf_get_val_str, (keys, 0)),
        "a key that is not there": (lib.gguf_get_val_u32, (keys, 5)),
    }
    lib.gguf_free(keys)
    lib.ggml_free(full)


def test_each_abort_is_an_exception_with_ggmls_own_words(refusals: dict[str, Refusal]) -> None:
    for function, arguments in refusals.values():
        with pytest.raises(kit.GgmlAbort, match=r"(GGML_ASSERT|not enough space|fatal).*|.*\.(c|cpp):\d+"):
            function(*arguments)


def test_the_text_names_the_source_line_but_not_the_build_machine(refusals: dict[str, Refusal]) -> None:
    function, arguments = refusals["mul_mat of wrong shapes"]
    with pytest.raises(kit.GgmlAbort) as caught:
        function(*arguments)
    assert str(caught.value).startswith("ggml/src/ggml.c:")
    assert "ggml_can_mul_mat" in str(caught.value)


def test_an_abort_in_a_call_that_releases_the_gil(pool: Any) -> None:
    tensor = lib.ggml_new_tensor_1d(pool, lib.GGML_TYPE_F32, 4)
    backend = lib.ggml_backend_cpu_init()
    buffer = lib.ggml_backend_alloc_ctx_tensors(pool, backend)
    with pytest.raises(kit.GgmlAbort, match="out of bounds"):
        lib.ggml_backend_tensor_set(tensor, ffi.new("char[64]"), 8, 64)
    lib.ggml_backend_buffer_free(buffer)
    lib.ggml_backend_free(backend)


def test_a_refused_call_leaves_the_pool_as_it_was(pool: Any, refusals: dict[str, Refusal]) -> None:
    before = lib.ggml_used_mem(pool)
    for name in ("mul_mat of wrong shapes", "add of wrong shapes", "reshape to another size"):
        function, arguments = refusals[name]
        with pytest.raises(kit.GgmlAbort):
            function(*arguments)
    assert lib.ggml_used_mem(pool) == before


def test_ten_thousand_aborts_cost_no_memory_and_no_threads(
    refusals: dict[str, Refusal],
    resident_bytes: Callable[[], int],
    n_os_threads: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "kit.ggml")  # pytest keeps every record in memory

    def refuse(times: int) -> None:
        for _ in range(times):
            for function, arguments in refusals.values():
                with pytest.raises(kit.GgmlAbort):
                    function(*arguments)

    refuse(100)
    gc.collect()
    before, threads = resident_bytes(), n_os_threads()
    refuse(1500)
    gc.collect()
    assert resident_bytes() - before < 1 << 20
    assert n_os_threads() == threads


def test_each_python_thread_has_its_own_aborts(refusals: dict[str, Refusal]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    names = list(refusals)[:4]

    def refuse(name: str) -> set[str]:
        function, arguments = refusals[name]
        texts = set()
        for _ in range(300):
            with pytest.raises(kit.GgmlAbort) as caught:
                function(*arguments)
            texts.add(str(caught.value))
        return texts

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(refuse, names))
    assert all(len(own) == 1 for own in texts)
    assert len({text for own in texts for text in own}) >= 3


def test_an_abort_of_ggml_outside_python_is_still_an_abort(child: Any) -> None:
    """No frame of ours is open in a thread that Python never called: the guard must not swallow it."""
    done = child(
        """
        import ctypes
        import kit.core.native as native
        base = next(path for path in native.library_paths() if "base" in path.name)
        ctypes.CDLL(str(base)).ggml_abort(b"a file", 1, b"for %s", b"nobody")
        """,
        returncode=-6,
    )
    assert "a file:1: for nobody" in done.stderr
