"""Logits and continuations of the demo model against values kit had no part in.

tests/models/data/smollm2_llama_cpp.json holds, for each prompt, ``plain`` and ``flash``: an independent graph on
the same libraries, n_kv padded to 256; and at its top level llama.cpp itself on ggml 0.25.3. The bounds for
another build of ggml are what llama.cpp differs by from itself: single logits by up to 1.3, flash on and off 1.6.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import kit

pytestmark = pytest.mark.model

CASES = json.loads((pathlib.Path(__file__).parent / "data" / "smollm2_llama_cpp.json").read_text())["prompts"]
SAME_BUILD = 0.001


@pytest.fixture(params=CASES, ids=[case["text"][:16] for case in CASES])
def case(request):
    return request.param


def logits_of(demo: kit.Model, case: dict, flash: bool) -> np.ndarray:
    with demo.session(n_ctx=256, flash_attn=flash) as session:
        return session.run(case["text"]).logits


@pytest.mark.parametrize("kind", ["plain", "flash"])
def test_logits_are_those_of_another_graph_on_the_same_libraries(demo, case, kind):
    logits, expected = logits_of(demo, case, kind == "flash"), case[kind]
    assert np.abs(logits[-1][expected["top_ids"]] - expected["top_logits"]).max() < SAME_BUILD
    assert logits.argmax(1).tolist() == expected["argmax"]
    assert abs(logits[-1].mean() - expected["mean_logit"]) < SAME_BUILD


@pytest.mark.parametrize("flash", [False, True])
def test_logits_are_near_llama_cpp_of_another_build(demo, case, flash):
    logits = logits_of(demo, case, flash)
    error = np.abs(logits[-1][case["top_ids"]] - case["top_logits"])
    assert error.max() < 1.5 and error.mean() < 0.6
    best = np.sort(logits, 1)
    sure = best[:, -1] - best[:, -2] > 0.5
    assert (logits.argmax(1) == case["argmax"])[sure].all()


def test_greedy_continuation_is_llama_cpps_while_the_choice_is_clear(demo, case):
    with demo.session(n_ctx=256) as session:
        tokens = session.generate(case["ids"], max_tokens=len(case["greedy"]), sampler=kit.Sampler(temperature=0))
        ids = [token.id for token in tokens]
        same = next((i for i, (a, b) in enumerate(zip(ids, case["greedy"], strict=False)) if a != b), len(ids))
        if same < len(case["greedy"]):  # another build may decide a near tie otherwise, and all after it
            session.reset()
            best = np.sort(session.run([*case["ids"], *ids[:same]], logits="last").logits[0])
            assert best[-1] - best[-2] < 0.5


def test_the_answer(demo):
    with demo.session(n_ctx=64) as session:
        text = "".join(
            token.text
            for token in session.generate("The capital of France is", max_tokens=8, sampler=kit.Sampler(temperature=0))
        )
    assert "Paris" in text


def test_stepping_through_the_demo_model_gives_the_logits_of_running(demo):
    ids = CASES[0]["ids"]
    with demo.session(n_ctx=256) as session:
        expected = session.run(ids).logits
        session.reset()
        walk = session.steps(ids)
        assert np.array_equal(walk.finish().logits, expected)
        assert walk.names == session.stages
