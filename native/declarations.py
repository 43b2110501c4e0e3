"""cffi declarations made from ggml's installed headers, at build time.

Nothing of the headers is kept in this repository: the preprocessor resolves them, the text
that came from ggml's own folder is parsed, and what the libraries really export is declared.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pycparser import c_ast, c_generator, c_parser

_LINE_MARKER = re.compile(r'# \d+ "([^"]*)"')
_INTEGERS = [f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")]
_BUILTIN_TYPES = ["size_t", *_INTEGERS, "uintptr_t", "intptr_t", "ptrdiff_t", "FILE", "va_list", "bool"]
_INTEGER_MACRO = re.compile(r"\(?-?(0x[0-9a-fA-F]+|\d+)[uUlL]*\)?")


@dataclass(frozen=True)
class Declarations:
    """What cffi is told: the declaration text and the names of the functions in it."""

    text: str
    functions: tuple[str, ...]


def declare(include: pathlib.Path, headers: Sequence[str], exported: frozenset[str], cc: str = "cc") -> Declarations:
    """Return cffi declarations of everything in ``headers`` that the libraries export."""
    source = _clean(_own_text(_preprocess(include, headers, cc), include))
    prelude = "".join(f"typedef int {name};\n" for name in _BUILTIN_TYPES)
    nodes = c_parser.CParser().parse(prelude + source).ext[len(_BUILTIN_TYPES) :]
    generator = _Generator()
    lines: dict[str, None] = {}
    functions: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, c_ast.FuncDef):
            continue
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            if node.name not in exported or node.name in functions:
                continue
            node.storage, node.funcspec = [], []
            functions[node.name] = None
        elif isinstance(node, c_ast.Decl):
            node.init = None  # the compiler supplies the value of a static const
        _OpenArrays().visit(node)
        lines[generator.visit(node) + ";"] = None
    macros = _macros(_preprocess(include, headers, cc, "-dD"), include)
    text = "\n".join([*lines, *macros]).replace(_OPEN, "...")
    return Declarations(text + "\n", tuple(functions))


def exported_names(libraries: Iterable[pathlib.Path]) -> frozenset[str]:
    """Return the names of all dynamic symbols that ``libraries`` define."""
    names: set[str] = set()
    for library in libraries:
        listing = subprocess.run(
            ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
        ).stdout
        names |= {line.split()[-1].split("@")[0] for line in listing.splitlines() if line.strip()}
    return frozenset(names)


def _preprocess(include: pathlib.Path, headers: Sequence[str], cc: str, *flags: str) -> str:
    source = "".join(f'#include "{header}"\n' for header in headers)
    command = [cc, "-E", *flags, "-I", str(include), "-xc", "-std=c11", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=True).stdout


def _lines_of_folder(text: str, folder: pathlib.Path) -> list[str]:
    root = str(folder.resolve()) + "/"
    kept, inside = [], False
    for line in text.splitlines():
        marker = _LINE_MARKER.match(line)
        if marker:
            inside = str(pathlib.Path(marker.group(1)).resolve()).startswith(root)
        elif inside:
            kept.append(line)
    return kept


def _own_text(text: str, folder: pathlib.Path) -> str:
    return "\n".join(line for line in _lines_of_folder(text, folder) if not line.startswith("#"))


def _macros(text: str, folder: pathlib.Path) -> list[str]:
    found: dict[str, None] = {}
    for line in _lines_of_folder(text, folder):
        match = re.match(r"#define (\w+) (.+)$", line)
        if not match:
            continue
        name, value = match.group(1), match.group(2).strip()
        if _INTEGER_MACRO.fullmatch(value):
            found[f"#define {name} ..."] = None
        elif re.fullmatch(r'"[^"]*"', value):
            found[f"static char *const {name};"] = None
    return list(found)


def _clean(text: str) -> str:
    text = _without_calls(text, re.compile(r"__attribute__\s*\(|__asm__\s*\("))
    text = re.sub(r"\b(_Noreturn|__extension__|__inline|inline|__restrict__|__restrict|restrict)\b", "", text)
    return re.sub(r"\b_Bool\b", "bool", text)


def _without_calls(text: str, opening: re.Pattern[str]) -> str:
    """Return ``text`` without each match of ``opening`` up to its balanced closing bracket."""
    kept, position = [], 0
    while match := opening.search(text, position):
        kept.append(text[position : match.start()])
        depth, position = 1, match.end()
        while depth:
            if text[position] == '"':
                position = text.index('"', position + 1)
            depth += {"(": 1, ")": -1}.get(text[position], 0)
            position += 1
    return "".join(kept) + text[position:]


_OPEN = "KIT_OPEN_LENGTH"


class _Generator(c_generator.CGenerator):  # type: ignore[misc]
    """Emits enumerators without values: the compiler supplies them."""

    def visit_Enumerator(self, n: c_ast.Enumerator) -> str:  # noqa: N802 - pycparser's name
        return f"{self._make_indent()}{n.name} = ...,\n"


class _OpenArrays(c_ast.NodeVisitor):  # type: ignore[misc]
    """Replaces array lengths that cffi cannot evaluate by an open length."""

    def visit_ArrayDecl(self, node: c_ast.ArrayDecl) -> None:  # noqa: N802 - pycparser's name
        if node.dim is not None and _mentions_sizeof(node.dim):
            node.dim = c_ast.ID(_OPEN)
        self.generic_visit(node)


def _mentions_sizeof(node: c_ast.Node) -> bool:
    if isinstance(node, c_ast.UnaryOp) and node.op == "sizeof":
        return True
    return any(_mentions_sizeof(child) for _, child in node.children())
