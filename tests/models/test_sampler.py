"""The sampler: its filters by their definitions, its draws by their frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kit.errors import ArgumentError, KitError, ShapeError
from kit.models.sampler import Sampler

LOGITS = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))
SAMPLERS = st.builds(
    Sampler,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 70),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


@given(LOGITS)
def test_temperature_zero_takes_the_first_of_the_largest(logits):
    assert Sampler(temperature=0).sample(logits) == int(np.argmax(logits))


@given(LOGITS, st.floats(0.05, 5))
def test_without_filters_the_probabilities_are_the_softmax_of_logits_over_temperature(logits, temperature):
    ids, probabilities = Sampler(**OPEN | {"temperature": temperature}).candidates(logits)
    whole = np.zeros(len(logits))
    whole[ids] = probabilities
    np.testing.assert_allclose(whole, softmax(logits.astype(np.float64) / temperature), rtol=1e-6, atol=1e-12)


@given(LOGITS, st.integers(1, 70))
def test_top_k_keeps_the_k_largest_and_of_equal_ones_the_first(logits, k):
    ids, _ = Sampler(**OPEN | {"top_k": k}).candidates(logits)
    assert ids.tolist() == sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]


@given(LOGITS, st.floats(0, 0.999))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    ids, _ = Sampler(**OPEN | {"top_p": p}).candidates(logits)
    chances = softmax(logits)[ids]
    assert chances.sum() >= p - 1e-9
    assert len(ids) == 1 or chances[:-1].sum() < p + 1e-9


@given(LOGITS, st.floats(0.001, 1))
def test_min_p_keeps_what_is_at_least_p_times_as_likely_as_the_likeliest(logits, p):
    kept = set(Sampler(**OPEN | {"min_p": p}).candidates(logits)[0].tolist())
    chances = softmax(logits)
    for i, ratio in enumerate(chances / chances.max()):
        if not math.isclose(ratio, p, rel_tol=1e-6):
            assert (i in kept) == (ratio > p)


def test_top_p_looks_at_what_top_k_left_as_in_llama_cpps_chain():
    # Of 4 equal tokens 2 stay; each then has half of what is left, so p = 0.5 needs one of them.
    ids, _ = Sampler(temperature=1, top_k=2, top_p=0.5, min_p=0).candidates(np.zeros(4))
    assert ids.tolist() == [0]


def test_temperature_comes_after_the_filters_as_in_llama_cpps_chain():
    logits = np.log([0.6, 0.3, 0.1])
    ids, probabilities = Sampler(temperature=100, top_k=0, top_p=0.85, min_p=0).candidates(logits)
    assert ids.tolist() == [0, 1]
    np.testing.assert_allclose(probabilities, [0.5, 0.5], atol=0.01)


@given(LOGITS, SAMPLERS)
def test_what_is_drawn_is_among_the_candidates(logits, sampler):
    ids, probabilities = sampler.candidates(logits)
    assert math.isclose(probabilities.sum(), 1)
    assert (np.diff(probabilities) <= 0).all() and (probabilities > 0).all()
    assert sampler.sample(logits) in ids


def test_draws_come_as_often_as_their_probability_says():
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    sampler, n = Sampler(**OPEN, seed=3), 20_000
    counts = np.bincount([sampler.sample(np.log(chances)) for _ in range(n)], minlength=4)
    # Five standard deviations of a binomial: a false alarm in about a million seeds.
    assert (abs(counts - n * chances) < 5 * np.sqrt(n * chances * (1 - chances))).all()


def test_a_seed_repeats_and_reset_starts_it_again():
    logits = np.random.default_rng(0).standard_normal((30, 500))
    one, other = Sampler(temperature=2, seed=7), Sampler(temperature=2, seed=7)
    drawn = [one.sample(row) for row in logits]
    assert drawn == [other.sample(row) for row in logits]
    assert drawn != [one.sample(row) for row in logits]
    one.reset()
    assert drawn == [one.sample(row) for row in logits]
    assert drawn != [Sampler(temperature=2, seed=8).sample(row) for row in logits]


def test_without_a_seed_two_samplers_differ():
    logits = np.zeros((40, 1000))
    assert [Sampler(top_k=0).sample(row) for row in logits] != [Sampler(top_k=0).sample(row) for row in logits]


def test_tokens_ruled_out_are_never_drawn():
    logits = np.full(10, -np.inf)
    logits[[2, 5]] = 0
    sampler = Sampler(**OPEN, seed=0)
    assert {sampler.sample(logits) for _ in range(100)} == {2, 5}


def test_a_tiny_temperature_is_greedy_and_quiet():
    assert Sampler(temperature=1e-300, seed=0).sample(np.array([0, 3, 2.999])) == 1


def test_logits_are_not_written_to():
    logits = np.array([1, 2, 3], np.float32)
    logits.flags.writeable = False
    Sampler(seed=0).sample(logits)
    assert Sampler(temperature=0).sample([1, 5, 2]) == 1


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize(
    ("logits", "error", "words"),
    [
        (np.array([0, np.nan, 1]), ArgumentError, "NaN, first at token 1"),
        (np.array([0, np.inf]), ArgumentError, "inf"),
        (np.full(3, -np.inf), ArgumentError, "inf"),
        (np.zeros((2, 3)), ShapeError, r"\(2, 3\)"),
        (np.zeros(0), ShapeError, r"\(0,\)"),
        (np.array(["a"]), ArgumentError, "str"),
    ],
)
def test_bad_logits_are_refused(logits, error, words, temperature):
    with pytest.raises(error, match=words) as caught:
        Sampler(temperature=temperature).sample(logits)
    assert isinstance(caught.value, KitError)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"temperature": "1"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_k": True},
        {"top_p": 1.01},
        {"top_p": -0.1},
        {"min_p": 2},
        {"seed": -1},
        {"seed": "x"},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ArgumentError, match=f"{name} is {value!r}"):
        Sampler(**setting)


def test_settings_are_fixed_and_shown():
    sampler = Sampler(temperature=0.7, seed=1)
    with pytest.raises(AttributeError):
        sampler.temperature = 1
    assert repr(sampler) == "Sampler(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=1)"
