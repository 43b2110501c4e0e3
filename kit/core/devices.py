"""The devices ggml sees, as data."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from kit.core.native import ffi, lib, text
from kit.errors import ArgumentError
from kit.tables import html_table, text_table
from kit.units import bytes_text

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


@dataclass(frozen=True)
class Device:
    """One device; memory in bytes, ``host_buffer_type`` None where the device has no pinned host memory."""

    name: str
    kind: str
    description: str
    memory_free: int
    memory_total: int
    buffer_type: str
    host_buffer_type: str | None
    features: dict[str, str] = field(default_factory=dict, hash=False)


class Devices(tuple[Device, ...]):
    """All devices, in ggml's order, printed as a table."""

    __slots__ = ()

    _HEAD = ("name", "kind", "description", "free", "total", "buffer type", "pinned host")

    def rows(self) -> list[tuple[str, ...]]:
        """The table without its head."""
        return [
            (
                d.name,
                d.kind,
                d.description,
                bytes_text(d.memory_free),
                bytes_text(d.memory_total),
                d.buffer_type,
                d.host_buffer_type or "no",
            )
            for d in self
        ]

    def __repr__(self) -> str:
        return text_table(self._HEAD, self.rows(), range(len(self._HEAD)))

    def _repr_html_(self) -> str:
        return html_table(self._HEAD, self.rows(), range(len(self._HEAD)))


def devices() -> Devices:
    """Return every device ggml sees: the CPU, and what the loaded backends add."""
    return Devices(_describe(name, handle) for name, handle in device_handles().items())


def device_handles() -> dict[str, Any]:
    """Return ggml's handle of each device by kit's name: ``CPU.0``, ``Vulkan.1``."""
    counters: dict[str, itertools.count[int]] = {}
    handles = {}
    for index in range(lib.ggml_backend_dev_count()):
        handle = lib.ggml_backend_dev_get(index)
        base = re.sub(r"\d+$", "", text(lib.ggml_backend_dev_name(handle))) or "device"
        number = next(counters.setdefault(base, itertools.count()))
        handles[f"{base}.{number}"] = handle
    return handles


def device_handle(name: str) -> Any:
    """Return ggml's handle of the device called ``name``.

    Raises:
        ArgumentError: there is no such device.
    """
    handles = device_handles()
    if name not in handles:
        raise ArgumentError(f"no device {name!r}; devices here: {', '.join(handles)}")
    return handles[name]


def available_memory() -> tuple[int, int]:
    """Return (available, total) bytes of this machine's memory; (0, 0) where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return tuple(int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return 0, 0


def _describe(name: str, handle: Any) -> Device:
    kind = _KINDS.get(int(lib.ggml_backend_dev_type(handle)), "accel")
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    memory = (int(free[0]), int(total[0]))
    if kind == "cpu":  # ggml says free == total for the CPU
        memory = available_memory() if available_memory()[1] else memory
    host = lib.ggml_backend_dev_host_buffer_type(handle)
    return Device(
        name=name,
        kind=kind,
        description=text(lib.ggml_backend_dev_description(handle)).strip(),
        memory_free=memory[0],
        memory_total=memory[1],
        buffer_type=text(lib.ggml_backend_buft_name(lib.ggml_backend_dev_buffer_type(handle))),
        host_buffer_type=text(lib.ggml_backend_buft_name(host)) if host != ffi.NULL else None,
        features=_features(handle),
    )


def _features(handle: Any) -> dict[str, str]:
    registry = lib.ggml_backend_dev_backend_reg(handle)
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
    if address == ffi.NULL:
        return {}
    feature = ffi.cast("ggml_backend_get_features_t", address)(registry)
    found = {}
    while feature != ffi.NULL and feature.name != ffi.NULL:
        found[text(feature.name)] = text(feature.value)
        feature = feature + 1
    return found
