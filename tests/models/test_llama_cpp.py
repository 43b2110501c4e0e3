"""Tiny models against llama.cpp on the same files: logits in tests/models/data/llama_cpp_logits.npz.

They were made by tests/models/data/make_llama_cpp_logits.py, in float32 with a float32 cache. kit is held to them
with its own caches, and so is the float64 pass that the other tests go by.
"""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import kit

from . import tiny
from .reference import forward
from .test_reference import IDS
from .test_transformers import error

LOGITS = dict(np.load(pathlib.Path(__file__).parent / "data" / "llama_cpp_logits.npz"))


@pytest.mark.parametrize("kind", LOGITS)
def test_logits_are_those_of_llama_cpp(tiny_path, kind):
    with kit.load(tiny_path(kind), n_threads=1) as model:
        run = model.session(n_ctx=64).run(IDS)
    assert error(run.logits, LOGITS[kind]) < 2e-3


@pytest.mark.parametrize("kind", LOGITS)
def test_the_float64_pass_is_llama_cpp(kind):
    model = tiny.Tiny(**tiny.KINDS[kind])
    assert error(forward(model, IDS)["logits"], LOGITS[kind]) < 2e-5
