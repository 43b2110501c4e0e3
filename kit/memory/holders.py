"""Who keeps a leaked thing alive: the Python names that lead to kit's object for it, as far as they can be found."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kit.core.backend import _State
from kit.core.buffer import Buffer
from kit.core.native import ffi
from kit.core.pools import Pools
from kit.memory.events import Recording
from kit.memory.leaks import Leak

_MAX_LEAKS = 3
_MAX_DEPTH = 8
_MAX_LOOKS = 16
_MAX_HOLDERS = 4


def with_holders(leaks: list[Leak], recording: Recording) -> list[Leak]:
    """Return ``leaks``, the first few of kit's own with who holds them."""
    wanted = [i for i, leak in enumerate(leaks) if leak.library == "kit"][:_MAX_LEAKS]
    if not wanted:
        return leaks
    samples = _samples(leaks, wanted, recording)
    found = list(leaks)
    while samples:
        i, sample = samples.popitem()
        found[i] = replace(leaks[i], held_by=tuple(_holders(sample)))
    return found


def _samples(leaks: list[Leak], wanted: list[int], recording: Recording) -> dict[int, object]:
    """One object for each wanted leak, where there is one. Nothing else refers to it when this returns."""
    live = recording.live_at(len(recording) - 1)
    objects = _objects_by_address()
    samples = {}
    for i in wanted:
        for address in _addresses(recording, live, leaks[i]):
            if address in objects:
                samples[i] = objects[address]
                break
    return samples


def _addresses(recording: Recording, live: Iterable[int], leak: Leak) -> Iterable[int]:
    from kit.memory import stacks, store

    for index in live:
        record = recording.records[index]
        if store.KINDS[int(record["kind"])] == leak.kind and stacks.where(int(record["stack"])) == leak.where:
            yield int(record["address"])


def _objects_by_address() -> dict[int, object]:
    """kit's objects that own native memory, by its address."""
    found: dict[int, object] = {}
    for item in gc.get_objects():
        kind = type(item)
        if kind is Buffer:
            found[_address(item._handle)] = item
        elif kind is Pools:
            found.update({_address(raw): item for raw, _, _ in item.chain})
        elif kind is _State and item.scheduler is not None:
            found[_address(item.scheduler)] = item
    return found


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _holders(target: object) -> list[str]:
    """Walk referrers breadth first up to names people know."""
    ignored = {id(sys._getframe(i)) for i in range(_depth())}
    seen = {id(target)}
    level: list[object] = [target]
    found: dict[str, None] = {}
    looks = 0
    variables = _running_variables()
    for _ in range(_MAX_DEPTH):
        above: list[object] = []
        for item in level:
            if id(item) in variables:
                found.setdefault(variables[id(item)])
            looks += 1
            if looks > _MAX_LOOKS or len(found) >= _MAX_HOLDERS:
                return list(found)
            for holder in gc.get_referrers(item):
                if id(holder) in seen or id(holder) in ignored or holder is level or holder is above:
                    continue
                seen.add(id(holder))
                name = _known_as(holder, item)
                if name:
                    found.setdefault(name)
                elif not _is_plumbing(holder):
                    above.append(holder)
        if found or not above:
            break
        level = above
    return list(found)[:_MAX_HOLDERS]


def _depth() -> int:
    frame: types.FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "kit":
        depth += 1
        frame = frame.f_back
    return depth


def _known_as(holder: object, item: object) -> str:
    """Return how people know ``holder``'s reference to ``item``; empty where it is only a step on the way."""
    if isinstance(holder, dict):
        return _in_outputs(holder, item) or _in_namespace(holder, item)
    if isinstance(holder, types.FrameType):
        names = [name for name, value in holder.f_locals.items() if value is item]
        running = "" if _is_running(holder) else ", kept by a traceback or a generator"
        function = holder.f_code.co_qualname
        return (
            f"{names[0] if names else 'a value'} in {function}{running}" if not _kits(holder.f_code.co_filename) else ""
        )
    if isinstance(holder, types.CellType):
        return f"a closure's variable ({type(item).__name__})"
    return ""


def _in_outputs(holder: dict[Any, Any], item: object) -> str:
    """Return ``Out[n]`` if ``holder`` keeps the results of a notebook's cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or holder is not shell.user_ns.get("_oh"):
        return ""
    return next((f"Out[{number}]" for number, value in holder.items() if value is item), "")


def _in_namespace(holder: dict[Any, Any], item: object) -> str:
    module = holder.get("__name__")
    if not isinstance(module, str) or "__builtins__" not in holder or module.split(".")[0] == "kit":
        return ""
    names = [str(name) for name, value in holder.items() if value is item]
    plain = [name for name in names if not name.startswith("_")] or names
    return f"{module}.{plain[0]}" if plain else ""


def _running_variables() -> dict[int, str]:
    """Local variables of functions that run now, by the identity of their values: no collector lists those frames."""
    return {
        id(value): f"{name} in {frame.f_code.co_qualname}"
        for top in sys._current_frames().values()
        for frame in _chain(top)
        if not _kits(frame.f_code.co_filename) and frame.f_locals is not frame.f_globals
        for name, value in frame.f_locals.items()
    }


def _is_running(frame: types.FrameType) -> bool:
    running = {id(f) for top in sys._current_frames().values() for f in _chain(top)}
    return id(frame) in running


def _chain(frame: types.FrameType | None) -> Iterable[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _kits(path: str) -> bool:
    from kit.memory.stacks import Frame

    return Frame("", 0, "", path).is_kits


def _is_plumbing(holder: object) -> bool:
    if isinstance(holder, types.FrameType):
        return True
    return type(holder).__module__ in ("weakref", "_weakref") or isinstance(holder, types.ModuleType | type)
