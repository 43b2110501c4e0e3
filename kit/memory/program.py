"""Running a Python program inside this process, as ``python SCRIPT`` or ``python -m MODULE`` would run it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pathlib
import runpy
import sys
import traceback
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class Program:
    """A script, a folder or archive with a ``__main__``, or a module by name; its globals stay until `forget`."""

    def __init__(self, name: str, args: Sequence[str], *, as_module: bool = False) -> None:
        self.name = name
        self.args = list(args)
        self._as_module = as_module
        self._globals: dict[str, object] = {}
        self._known = set(sys.modules)
        self._folder = pathlib.Path.cwd() if as_module else _folder_of(pathlib.Path(name))

    @property
    def exists(self) -> bool:
        """Whether there is something to run."""
        if not self._as_module:
            return pathlib.Path(self.name).exists()
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.util.find_spec(self.name) is not None
        except (ImportError, ValueError):
            return False
        finally:
            sys.path.pop(0)

    def run(self) -> int:
        """Run it as ``__main__``; return its exit code. What it raises is shown as Python would."""
        before = sys.argv[:], sys.path[:]
        sys.argv = [self.name, *self.args]
        sys.path.insert(0, str(self._folder))
        try:
            self._run()
        except SystemExit as end:
            return _exit_code(end)
        except KeyboardInterrupt as error:
            _show(error)
            return INTERRUPTED
        except BaseException as error:
            _show(error)
            return 1
        finally:
            sys.argv, sys.path[:] = before[0], before[1]
        return 0

    def _run(self) -> None:
        path = pathlib.Path(self.name)
        if self._as_module:
            self._globals = runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        elif not path.is_file() or path.suffix in (".pyc", ".zip", ".pyz"):
            self._globals = runpy.run_path(self.name, run_name="__main__")
        else:
            self._run_script(path)

    def _run_script(self, path: pathlib.Path) -> None:
        main = types.ModuleType("__main__")
        self._globals = main.__dict__
        loader = SourceFileLoader("__main__", str(path))
        self._globals |= {"__file__": str(path), "__loader__": loader, "__builtins__": __builtins__, "__cached__": None}
        sys.modules["__main__"] = main  # stays: exit handlers and threads of the program look it up
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, self._globals)

    def forget(self) -> None:
        """Drop the globals of the program, and of the modules beside it that it imported, as the end of Python does."""
        for name in set(sys.modules) - self._known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and self._is_own(pathlib.Path(file)):
                vars(sys.modules[name]).clear()
        self._globals.clear()

    def _is_own(self, file: pathlib.Path) -> bool:
        with contextlib.suppress(OSError, RuntimeError):
            return file.resolve().is_relative_to(self._folder) and "site-packages" not in file.parts
        return False


def _folder_of(path: pathlib.Path) -> pathlib.Path:
    return path.resolve().parent if path.is_file() else path.resolve()


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    with contextlib.suppress(Exception):  # text of the program's own making
        print(end.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Show ``error`` through the program's own hook, without the frames of whoever ran it."""
    trace = error.__traceback__
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
