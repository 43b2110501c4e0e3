"""Costs on a device with a host buffer type of its own: Vulkan, for instance over lavapipe on a machine without a GPU.

KIT_TEST_VULKAN names a libggml-vulkan.so of ggml 0.20 whose NEEDED and SONAME were given kit's private names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

LIBRARY = os.environ.get("KIT_TEST_VULKAN", "")
pytestmark = pytest.mark.skipif(not LIBRARY, reason="no second device here; set KIT_TEST_VULKAN to a libgkit-vulkan.so")

REGISTER = """
import ctypes, json, os
import kit
from kit.core.native import ffi, lib
vulkan = ctypes.CDLL(os.environ["KIT_TEST_VULKAN"], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
vulkan.ggml_backend_vk_reg.restype = ctypes.c_void_p
lib.ggml_backend_register(ffi.cast("ggml_backend_reg_t", vulkan.ggml_backend_vk_reg()))
"""


def with_vulkan(code: str, **environment: str) -> str:
    chosen = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", REGISTER + code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **chosen},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_devices_host_buffer_and_its_own_buffer_have_rows() -> None:
    out = with_vulkan("print(kit.memory.costs([4096], repeats=3).json())")
    found = json.loads(out)
    rows = {(c["kind"], c["device"]): c for c in found["costs"]}
    assert rows["host buffer", "Vulkan.0"]["got"] == "Vulkan_Host"
    assert rows["device buffer", "Vulkan.0"]["got"] == "Vulkan0"
    copies = {(c["kind"], c["device"]) for c in found["copies"]}
    assert {("host buffer", "Vulkan.0"), ("locked", "Vulkan.0"), ("malloc", "CPU.0")} <= copies
    assert "device buffer" not in {kind for kind, _ in copies}


def test_ggmls_silent_fallback_is_shown() -> None:
    out = with_vulkan("print(kit.memory.costs([1 << 21], repeats=3))", GGML_VK_FORCE_MAX_BUFFER_SIZE="1048576")
    assert "* host buffer of Vulkan.0, 2.0 MiB: asked for Vulkan_Host, got CPU" in out
    assert "* not given by Vulkan.0: " in out


def test_a_pool_in_the_devices_host_buffer() -> None:
    code = """
pool = kit.memory.LockedPool
with pool(1 << 19, device="Vulkan.0") as small, pool(1 << 21, device="Vulkan.0") as large:
    with small.buffer(100):
        print(json.dumps([small.memory, small.locked, large.memory, large.locked, large.note]))
print(kit.memory.live())
"""
    out = with_vulkan(code, GGML_VK_FORCE_MAX_BUFFER_SIZE="1048576").splitlines()
    assert json.loads(out[0])[:4] == ["Vulkan_Host", True, "CPU", False] and "asked for Vulkan_Host" in out[0]
    assert out[1] == "nothing is live"


def test_a_report_tells_the_device_of_a_host_buffer_and_of_a_fallback() -> None:
    code = """
from kit.core.devices import device_handle
host = lib.ggml_backend_dev_host_buffer_type(device_handle("Vulkan.0"))
with kit.Tracker() as mem:
    for size in (1 << 19, 1 << 21):  # the second is beyond what the device may give at once
        lib.ggml_backend_buffer_free(lib.ggml_backend_buft_alloc_buffer(host, size))
print(json.dumps([[e.device, e.buffer_type] for e in mem.report().events if e.action == "alloc"]))
"""
    out = with_vulkan(code, GGML_VK_FORCE_MAX_BUFFER_SIZE="1048576")
    assert json.loads(out) == [["Vulkan.0", "Vulkan_Host"], ["CPU.0", "CPU instead of Vulkan_Host"]]
