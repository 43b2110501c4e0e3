"""Imports point one way: native <- core <- {memory, diagram} <- models <- views <- cli; the rest lies below all."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

ROOMS = {
    "errors": -1,
    "units": 0,
    "log": 0,
    "checks": 0,
    "tables": 0,
    "files": 0,
    "progress": -1,
    "registry": 0,
    "core": 1,
    "memory": 2,
    "backends": 2,
    "diagram": 2,
    "models": 3,
    "views": 4,
    "cli": 5,
    "pytest_plugin": 5,
    "__main__": 6,
}

#: May fetch a view inside a function: who holds the data offers the picture, and knows only where pictures are drawn.
ASK_A_VIEW = {"kit.models.session.run"}


def _modules() -> dict[str, pathlib.Path]:
    found = {}
    for path in sorted((ROOT / "kit").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(path: pathlib.Path) -> Iterator[tuple[str, bool, bool]]:
    """Yield each name that ``path`` imports, whether inside a function, and whether for type checkers only."""
    yield from _walk(ast.parse(path.read_text()), False, False)


def _walk(node: ast.AST, inside: bool, typing_only: bool) -> Iterator[tuple[str, bool, bool]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, inside, typing_only
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: imports in kit are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield (whole if whole in MODULES else str(node.module)), inside, typing_only
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.body:
            yield from _walk(child, inside, True)
        for child in node.orelse:
            yield from _walk(child, inside, typing_only)
    else:
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, inside, typing_only)


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "kit" and len(parts) > 1 else None


@pytest.mark.parametrize("module", [name for name in MODULES if _room(name)])
def test_a_module_imports_its_own_room_and_those_below(module: str) -> None:
    own = _room(module)
    assert own in ROOMS, f"{module}: kit.{own} is a room the rule does not know"
    for imported, inside, _ in _imports(MODULES[module]):
        room = _room(imported)
        if room is None or room == own or imported == "kit._native":
            continue
        if room == "views" and inside and module in ASK_A_VIEW:
            continue
        assert room in ROOMS, f"{module} imports {imported}: an unknown room"
        assert ROOMS[room] < ROOMS[own], f"{module} imports {imported}, which lies above it or beside it"


@pytest.mark.parametrize("module", [name for name in MODULES if _room(name) not in (None, "views", "cli", "__main__")])
def test_only_views_and_the_command_line_use_kit_as_a_user_would(module: str) -> None:
    assert "kit" not in {imported for imported, *_ in _imports(MODULES[module])}


def test_only_one_door_leads_to_the_extension() -> None:
    users = {
        name
        for name, path in MODULES.items()
        if any(imported.startswith("kit._native") for imported, *_ in _imports(path))
        or '"kit._native"' in path.read_text()
    }
    assert users == {"kit.core.native"}


def test_the_sources_of_the_extension_import_nothing_of_kit() -> None:
    for path in (ROOT / "native").glob("*.py"):
        assert not [imported for imported, *_ in _imports(path) if imported.split(".")[0] == "kit"], path


def test_at_import_time_there_is_no_cycle() -> None:
    """A module that is being imported is not asked for by what it imports; inside functions and for types it may be."""
    graph = {
        name: {
            imported
            for imported, inside, typing_only in _imports(path)
            if imported in MODULES and not (inside or typing_only)
        }
        for name, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for imported in sorted(graph[name]):
                visit(imported, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_everything_lies_in_a_known_room() -> None:
    assert {room for room in map(_room, MODULES) if room} <= set(ROOMS)
