"""From nothing to the first token, a process each: import, load, open a session, run a prompt."""

from __future__ import annotations

import importlib.util

import kit
from benchmarks.fresh import run_fresh
from benchmarks.measure import Candidate, Figure, interleaved

PROMPT = "The capital of France is"

_KIT = """
import json, sys
import kit
with kit.load(sys.argv[1], progress=False) as model, model.session(n_ctx=512) as session:
    token = next(session.generate(sys.argv[2], sampler=kit.Sampler(temperature=0)))
print(json.dumps(token.text))
"""
_LLAMA_CPP = """
import json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, verbose=False)
print(json.dumps(model(sys.argv[2], max_tokens=1, temperature=0)["choices"][0]["text"]))
"""


def run(rounds: int, scale: float) -> list[Figure]:
    """Time whole processes; llama-cpp-python beside kit where it is installed."""
    path = str(kit.find_model("smollm2-135m"))

    def process(code: str) -> float:
        text, took = run_fresh(code, path, PROMPT)
        if text != " Paris":
            raise RuntimeError(f"the first token was {text!r}, expected ' Paris'")
        return took

    candidates: dict[str, Candidate] = {"kit": lambda: process(_KIT)}
    if importlib.util.find_spec("llama_cpp"):
        candidates["llama.cpp"] = lambda: process(_LLAMA_CPP)
    times = interleaved(candidates, rounds)
    name = "a process up to its first token"
    if "llama.cpp" in times:
        return [Figure(name, times["kit"], times["llama.cpp"], "llama-cpp-python", 1.2, rounds)]
    return [Figure(f"{name} (s)", times["kit"], rounds=rounds, note="install llama-cpp-python for a ratio")]
