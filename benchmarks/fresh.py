"""Code in fresh interpreters: what it prints last is its result."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any


def run_fresh(code: str, *arguments: str) -> tuple[Any, float]:
    """Run ``code`` in a new interpreter; return the JSON of its last line and the seconds the process took."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    took = time.perf_counter() - started
    return json.loads(done.stdout.splitlines()[-1]), took
