"""The sampler: its filters by their definitions, its draws by their frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kit.errors import ArgumentError, KitError, ShapeError
from kit.models.session.sampler import Sampler

LOGITS = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))
SAMPLERS = st.builds(
    Sampler,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 70),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    typical_p=st.floats(0, 1),
    repeat_penalty=st.floats(0.5, 3),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    penalty_window=st.integers(-1, 20),
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


@given(LOGITS, SAMPLERS, st.lists(st.integers(0, 59), max_size=30))
def test_what_is_drawn_is_among_the_candidates(logits, sampler, recent):
    recent = [token for token in recent if token < len(logits)]
    ids, probabilities = sampler.candidates(logits, recent)
    assert math.isclose(probabilities.sum(), 1)
    assert (np.diff(probabilities) <= 0).all() and (probabilities > 0).all()
    assert sampler.sample(logits, recent) in ids


# Results of llama.cpp's own test of its samplers, tests/test-sampling.cpp in the sdist of llama-cpp-python 0.3.36.
TENTHS = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("chances", "settings", "recent", "expected"),
    [
        (TENTHS, {"top_k": 1}, [], [1.0]),
        (TENTHS, {"top_k": 3}, [], [0.44444, 0.33333, 0.22222]),
        (TENTHS, {"top_p": 0.7}, [], [0.571429, 0.428571]),
        (TENTHS, {"top_p": 0.8}, [], [0.44444, 0.33333, 0.22222]),
        (TENTHS, {"min_p": 0.26}, [], [0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]),
        (TENTHS, {"min_p": 0.51}, [], [0.4 / 0.7, 0.3 / 0.7]),
        (TENTHS, {"min_p": 1}, [], [1.0]),
        ([0.97, 0.01, 0.01, 0.01], {"typical_p": 0.5}, [], [1.0]),
        ([0.4, 0.2, 0.2, 0.2], {"typical_p": 0.5}, [], [1 / 3, 1 / 3, 1 / 3]),
        ([0.2] * 5, {"repeat_penalty": 50}, [0], [0.25, 0.25, 0.25, 0.25, 0]),
        ([0.2] * 5, {"repeat_penalty": 50}, [0, 1, 2, 0, 0], [0.5, 0.5, 0, 0, 0]),
        ([0.2] * 5, {"frequency_penalty": 5, "presence_penalty": 5}, [0], [*[0.249997] * 4, 0.000011]),
        ([0.2] * 5, {"frequency_penalty": 5, "presence_penalty": 5}, [0, 1, 2], [*[0.499966] * 2, *[0.000023] * 3]),
        ([0.2] * 5, {"frequency_penalty": 5, "presence_penalty": 5}, [0, 1, 2, 0, 0],
         [*[0.499977] * 2, *[0.000023] * 2, 0]),
    ],
)  # fmt: skip
def test_filters_and_penalties_give_what_llama_cpp_gives(chances, settings, recent, expected):
    # llama.cpp's test gives the logarithms of the chances as logits, which for repeat_penalty have to be below 0.
    _, probabilities = Sampler(**OPEN | settings).candidates(np.log(chances), recent)
    whole = np.zeros(len(expected))
    whole[: len(probabilities)] = probabilities
    np.testing.assert_allclose(whole, expected, atol=2e-5)


@given(LOGITS, st.floats(0.001, 0.999))
def test_typical_p_keeps_those_closest_to_the_entropy(logits, p):
    kept, _ = Sampler(**OPEN | {"typical_p": p}).candidates(logits)
    chances = softmax(logits)
    surprise = -np.log(chances)
    distance = abs(surprise - (chances * surprise).sum())
    left_out = np.setdiff1d(np.arange(len(logits)), kept)
    if len(left_out):
        assert distance[kept].max() <= distance[left_out].min() + 1e-6
        assert chances[kept].sum() > p - 1e-6
    farthest = kept[distance[kept].argmax()]
    assert len(kept) == 1 or chances[kept].sum() - chances[farthest] <= p + 1e-6


@given(LOGITS, st.floats(0.1, 5), st.floats(-2, 2), st.floats(-2, 2), st.integers(-1, 6), st.data())
def test_penalties_follow_their_formula_within_the_window(logits, repeat, frequency, presence, window, data):
    recent = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=12))
    sampler = Sampler(
        **OPEN,
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
        penalty_window=window,
    )
    expected = logits.astype(np.float64)
    seen = recent if window < 0 else recent[len(recent) - min(window, len(recent)) :]
    for token in set(seen):
        value = expected[token]
        value = value / repeat if value > 0 else value * repeat
        expected[token] = value - seen.count(token) * frequency - presence
    ids, probabilities = sampler.candidates(logits, recent)
    whole = np.zeros(len(logits))
    whole[ids] = probabilities
    np.testing.assert_allclose(whole, softmax(expected), rtol=1e-4, atol=1e-9)


def test_a_bias_is_added_first_and_can_rule_a_token_out():
    logits = np.array([1.0, 2.0, 3.0])
    assert Sampler(temperature=0, logit_bias={0: 5}).sample(logits) == 0
    assert Sampler(temperature=0, logit_bias={2: -math.inf}).sample(logits) == 1
    # 3 + 1 is doubled by the penalty, not 3 alone: 2 * (-4 + 1) > 2 * -4.
    negative = Sampler(**OPEN, logit_bias={0: 1.0}, repeat_penalty=2.0)
    _, probabilities = negative.candidates(np.array([-4.0, -6.0]), [0])
    np.testing.assert_allclose(probabilities, [0.5, 0.5])


def test_greedy_takes_what_typical_p_leaves():
    chances = [0.4, 0.2, 0.2, 0.2]
    assert Sampler(temperature=0, typical_p=0.5).sample(np.log(chances)) == 1
    assert Sampler(temperature=0).sample(np.log(chances)) == 0


def test_only_penalties_want_to_see_what_was_said():
    assert Sampler().memory == 0 == Sampler(repeat_penalty=1.1, penalty_window=0).memory
    assert Sampler(repeat_penalty=1.1).memory == 64
    assert Sampler(presence_penalty=0.1, penalty_window=-1).memory == -1


@pytest.mark.parametrize(
    ("settings", "recent", "words"),
    [
        ({"logit_bias": {5: 1.0}}, [], "logit_bias names token 5, the vocabulary has 3"),
        ({"logit_bias": {0: -math.inf, 1: -math.inf, 2: -math.inf}}, [], "rule out every token"),
        ({"repeat_penalty": 2.0}, [3], "reach from 3 to 3"),
        ({"repeat_penalty": 2.0}, [-1, 2], "reach from -1"),
    ],
)
def test_bias_and_tokens_outside_the_vocabulary_are_refused(settings, recent, words):
    for temperature in (0, 1):
        with pytest.raises(ArgumentError, match=words):
            Sampler(temperature=temperature, **settings).sample(np.zeros(3), recent)


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
        {"typical_p": 1.5},
        {"repeat_penalty": 0},
        {"repeat_penalty": -1},
        {"frequency_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"penalty_window": -2},
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
    assert repr(Sampler(repeat_penalty=1.1)).endswith("seed=None, repeat_penalty=1.1)")


@pytest.mark.parametrize("bias", [{-1: 0.0}, {"a": 0.0}, {0: math.inf}, {0: math.nan}, {0: "x"}, [1, 2]])
def test_a_bias_that_is_none_is_refused(bias):
    with pytest.raises(ArgumentError, match="logit_bias"):
        Sampler(logit_bias=bias)
