"""From an object up to the names people know: what refers to it, what refers to that, and how to write it down."""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

from kit.memory.stacks import Frame

_MAX_DEPTH = 16
_MAX_LEVEL = 24
_BUDGET, _LEVEL_COST = 400, 16  # looks: each goes once over all objects there are, for one object more
_MAX_NAMES = 4
_PLUMBING = ("weakref", "_weakref", "gc", "contextlib", "functools", "kit")
_BARE = ("Buffer", "BufferSet")  # named by what they are in


def names_of(target: object, minor: tuple[type, ...] = ()) -> list[str]:
    """Return how people reach ``target``: ``__main__.server.sessions[3] (Session)``; nearest names only, at most 4.

    A thing of kit's that ``target`` belongs to ends the path. Objects of ``minor`` types are looked at last.
    """
    return _Climb(target, minor).names()


class _Climb:
    """One breadth first climb. It refers to objects by ``objects`` and ``level`` only, which it never meets itself."""

    def __init__(self, target: object, minor: tuple[type, ...]) -> None:
        self.target = target
        self.minor = minor
        self.objects: dict[int, object] = {id(target): target}
        self.below: dict[int, int] = {}
        self.variables, self.passing = _running()
        self.modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)}
        self.found: dict[str, None] = {}

    def names(self) -> list[str]:
        level: list[object] = [self.target]
        looks = 0
        for _ in range(_MAX_DEPTH):
            for item in level:
                if id(item) in self.variables:
                    name, function = self.variables[id(item)]
                    self.note(f"{name}{self.path(item)} in {function}{self.kind(item)}")
            looks += _LEVEL_COST + len(level)
            if self.found or not level or looks > _BUDGET:
                break
            level = self.climb(level)
        return list(self.found)[:_MAX_NAMES]

    def note(self, text: str) -> None:
        self.found.setdefault(text)

    def climb(self, level: list[object]) -> list[object]:
        """Look at all that refers to ``level``: note what has a name, return the rest."""
        inside = {id(item) for item in level}
        ours = {id(level), id(self.objects), id(vars(self))} | self.passing
        above: list[object] = []
        for holder in gc.get_referrers(*level):
            if id(holder) in self.objects or id(holder) in ours or holder is above:
                continue
            child = next((id(item) for item in gc.get_referents(holder) if id(item) in inside), 0)
            if not child:
                continue
            self.objects[id(holder)] = holder
            self.below[id(holder)] = child
            if not self.named(holder, self.objects[child]):
                above.append(holder)
        above.sort(key=lambda item: isinstance(item, self.minor))
        return above[:_MAX_LEVEL]

    def named(self, holder: object, item: object) -> bool:
        """Note the name under which ``holder`` has ``item``, if it is one; return whether this way ends here."""
        if isinstance(holder, dict):
            return self.in_namespace(holder, item)
        if isinstance(holder, types.FrameType):
            return self.in_frame(holder, item)
        if isinstance(holder, types.CellType):
            return self.in_closure(holder, item)
        if isinstance(holder, type):
            if not _is_plumbing(holder.__module__):
                self.note(f"{holder.__module__}.{holder.__qualname__}{self.path(holder)}{self.kind(holder)}")
            return True
        if type(holder).__name__.startswith("hamt_"):
            return self.in_context(holder, item)
        return isinstance(holder, types.ModuleType) or _is_plumbing(type(holder).__module__, but="kit")

    def in_namespace(self, holder: dict[Any, Any], item: object) -> bool:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is not None and holder is shell.user_ns.get("_oh"):
            number = next((number for number, value in holder.items() if value is item), None)
            self.note(f"Out[{number}]{self.path(item)}{self.kind(item)}")
            return True
        module = self.modules.get(id(holder)) or ("__builtins__" in holder and holder.get("__name__"))
        if not isinstance(module, str):
            return False
        names = [str(name) for name, value in list(holder.items()) if value is item]
        plain = [name for name in names if not name.startswith("_")] or names
        if plain and not _is_plumbing(module):
            self.note(f"{module}.{plain[0]}{self.path(item)}{self.kind(item)}")
        return True

    def in_frame(self, frame: types.FrameType, item: object) -> bool:
        """Of a frame that does not run any more; locals of those that do are known already."""
        if not Frame("", 0, "", frame.f_code.co_filename).is_kits:
            name = next((name for name, value in frame.f_locals.items() if value is item), "a value")
            where = f"{frame.f_code.co_qualname}, kept by a traceback or a generator"
            self.note(f"{name}{self.path(item)} in {where}{self.kind(item)}")
        return True

    def in_closure(self, cell: types.CellType, item: object) -> bool:
        for closure in gc.get_referrers(cell):
            if not isinstance(closure, tuple):
                continue
            for function in gc.get_referrers(closure):
                if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                    if _is_plumbing(function.__module__ or ""):
                        return False
                    names = zip(function.__code__.co_freevars, closure, strict=True)
                    name = next(name for name, held in names if held is cell)
                    where = f"the closure of {function.__module__}.{function.__qualname__}"
                    self.note(f"{name}{self.path(item)} in {where}{self.kind(item)}")
                    return True
        return False

    def in_context(self, node: object, item: object) -> bool:
        """Of a node of the tree in which a context keeps its variables: pairs of them and their values."""
        parts = gc.get_referents(node)
        at = next(i for i, part in enumerate(parts) if part is item)
        near = [part for part in parts[max(at - 1, 0) : at + 2] if type(part).__name__ == "ContextVar"]
        if near:
            self.note(f"context variable {near[-1].name}{self.path(item)}{self.kind(item)}")
        return bool(near)

    def down(self, item: object) -> Iterator[tuple[object, object]]:
        """Steps from ``item`` towards the target, up to the first thing of kit's."""
        while item is not self.target and not _is_kits(item):
            inner = self.objects[self.below[id(item)]]
            yield item, inner
            item = inner

    def path(self, item: object) -> str:
        """Attributes, keys and indices that lead from ``item`` downwards."""
        text, outer = "", None
        for holder, inner in self.down(item):
            text += _step(holder, inner, outer)
            outer = holder
        return text

    def kind(self, item: object) -> str:
        """What of kit's is there, in brackets."""
        steps = list(self.down(item))
        end = steps[-1][1] if steps else item
        name = type(end).__name__
        return f" ({name})" if _is_kits(end) and name not in _BARE else ""


def _step(holder: object, item: object, outer: object) -> str:
    if isinstance(holder, dict):
        key = next((key for key, value in list(dict.items(holder)) if value is item), None)
        if outer is not None and _namespace(outer) is holder:
            return f".{key}"
        return f"[{key!r:.40}]" if isinstance(key, str | int) else "[...]"
    if isinstance(holder, list | tuple | collections.deque):
        return next((f"[{i}]" for i, value in enumerate(holder) if value is item), "[...]")
    return _attribute(holder, item)


def _attribute(holder: object, item: object) -> str:
    """``.name`` of an attribute; empty where another way leads on. No code of the object's own is run."""
    values = _namespace(holder)
    if values is item:
        return ""
    for name, value in list(values.items()) if values is not None else []:
        if value is item:
            return f".{name}"
    for name in [name for cls in type(holder).__mro__ for name in _slots(cls)]:
        try:
            if object.__getattribute__(holder, name) is item:
                return f".{name}"
        except AttributeError:
            continue
    return ""


def _namespace(holder: object) -> dict[str, object] | None:
    """The dict of an object's or a class's attributes."""
    if isinstance(holder, type):
        return next((d for d in gc.get_referents(holder) if isinstance(d, dict) and "__module__" in d), None)
    try:
        values = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return None
    return values if isinstance(values, dict) else None


def _slots(cls: type) -> list[str]:
    return [name for name, value in vars(cls).items() if isinstance(value, types.MemberDescriptorType)]


def _is_kits(item: object) -> bool:
    return (type(item).__module__ or "").split(".")[0] == "kit"


def _is_plumbing(module: str, but: str = "") -> bool:
    base = module.split(".")[0]
    return base in _PLUMBING and base != but


def _running() -> tuple[dict[int, tuple[str, str]], set[int]]:
    """Local variables of functions that run, by the identity of their values; and what merely passes them on."""
    variables: dict[int, tuple[str, str]] = {}
    passing: set[int] = set()
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            passing.add(id(frame))
            if frame.f_locals is not frame.f_globals:
                passing.add(id(frame.f_locals))
                if not Frame("", 0, "", frame.f_code.co_filename).is_kits:
                    function = frame.f_code.co_qualname
                    named = ((name, value) for name, value in frame.f_locals.items() if name.isidentifier())
                    variables.update((id(value), (name, function)) for name, value in named)
            frame = frame.f_back
    return variables, passing
