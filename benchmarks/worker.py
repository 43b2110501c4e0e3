"""Processes that wait for questions, so that a loaded model can take its turn many times.

A question is one line of JSON to the process's standard input, the answer one line of JSON on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Self


class WorkerError(RuntimeError):
    """A worker that ended or answered with an error; the message carries its last words."""


class Worker:
    """A process started at once; it is ready when the constructor returns, and ended by ``close``."""

    def __init__(self, *command: object, env: Mapping[str, str] | None = None) -> None:
        self._command = [str(part) for part in command]
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (see close)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=dict(os.environ, **(env or {})),
        )
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, question: str, **arguments: Any) -> Any:
        """Return the answer to one question; WorkerError if the process ended or says that it failed."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says so
            self._process.stdin.write(json.dumps({"question": question, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)["answer"]
        code = self._process.wait()
        self._stderr.seek(0)
        raise WorkerError(f"`{' '.join(self._command)}` ended with {code}:\n{self._stderr.read()[-2000:].strip()}")

    def close(self) -> None:
        """End the process: its input ends, and where that is not enough it is killed."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(answers: Mapping[str, Callable[..., Any]], ready: Any = None) -> None:
    """The worker's side: answer questions until the input ends. An exception ends the process and is printed."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps({"answer": ready}), file=out, flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps({"answer": answers[arguments.pop("question")](**arguments)}), file=out, flush=True)
