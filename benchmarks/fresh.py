"""Code in fresh interpreters: what it prints last is its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any


def run_fresh(code: str, *arguments: str, **environment: str) -> tuple[Any, float]:
    """Run ``code`` in a new interpreter; return the JSON of its last line and the seconds the process took.

    ``environment`` is set beside the variables of this process.
    """
    started = time.perf_counter()
    command, variables = [sys.executable, "-c", code, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    took = time.perf_counter() - started
    return json.loads(done.stdout.splitlines()[-1]), took
