"""Records of runs are plain data: they can be copied, pickled, and keep no model alive."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import kit


@pytest.fixture
def path(tiny_path):
    return tiny_path("grouped")


def test_a_run_can_be_copied_and_pickled_without_its_model(path):
    with kit.load(path, n_threads=1) as model:
        run = model.session(n_ctx=32).run([1, 2, 3], keep=["*.resid"])
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert twin.tokens == run.tokens and np.array_equal(twin.logits, run.logits)
        assert twin.names == run.names
        with pytest.raises(kit.UnknownStage, match="no model"):
            twin.lens()


def test_a_run_does_not_keep_its_model_alive(path):
    before = len(kit.memory.live())
    model = kit.load(path, n_threads=1)
    run = model.session(n_ctx=32).run([1, 2, 3], keep=["*.resid"])
    del model
    gc.collect()
    assert len(kit.memory.live()) == before
    with pytest.raises(kit.ClosedError, match="gone"):
        run.lens()
