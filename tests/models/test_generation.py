"""Generating: which tokens, when it ends, what the session holds afterwards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kit

GREEDY = kit.Sampler(temperature=0)
IDS = [1, 100, 7, 42]


class Script:
    """A sampler that says what it is told to."""

    def __init__(self, *ids: int) -> None:
        self._ids = iter(ids)

    def sample(self, logits: np.ndarray) -> int:
        return next(self._ids)


def say(text: str) -> Script:
    """A script of the tokens of the tiny vocabulary: one per byte, id = byte + 3."""
    return Script(*(byte + 3 for byte in text.encode()))


def ids_of(tokens) -> list[int]:
    return [token.id for token in tokens]


@pytest.fixture(params=[False, True], ids=["permuted", "flash"])
def either(request, model):
    return model.session(n_ctx=512, flash_attn=request.param)


def test_greedy_takes_the_likeliest_token_of_each_pass(either):
    made = list(either.generate(IDS, max_tokens=6, sampler=GREEDY))
    assert len(made) == 6 and either.tokens == (*IDS, *ids_of(made))
    either.reset()
    logits = either.run([*IDS, *ids_of(made)]).logits[len(IDS) - 1 : -1].astype(np.float64)
    assert ids_of(made) == logits.argmax(1).tolist()
    expected = logits.max(1) - np.log(np.exp(logits).sum(1))
    assert np.allclose([token.logprob for token in made], expected, atol=1e-4)


def test_a_seed_repeats_and_another_differs(session):
    def sample(seed):
        session.reset()
        return ids_of(
            session.generate(
                IDS, max_tokens=12, sampler=kit.Sampler(temperature=30, top_k=0, top_p=1, min_p=0, seed=seed)
            )
        )

    assert sample(1) == sample(1) != sample(2)


def test_no_tokens_asked_for_runs_nothing(session):
    assert list(session.generate(IDS, max_tokens=0)) == []
    assert session.tokens == ()
    session.run(IDS)
    expected = session.run([5]).logits
    session.reset()
    session.run(IDS)
    assert list(session.generate("", max_tokens=0)) == []
    assert session.tokens == tuple(IDS) and np.array_equal(session.run([5]).logits, expected)


def test_nothing_runs_before_the_first_token_is_asked_for(session):
    tokens = session.generate(IDS, max_tokens=3, sampler=GREEDY)
    assert session.n_past == 0
    next(tokens)
    assert session.n_past == len(IDS)


def test_it_goes_on_where_a_run_ended(either):
    once = ids_of(either.generate(IDS, max_tokens=6, sampler=GREEDY))
    either.reset()
    either.run(IDS)
    in_parts = ids_of(either.generate("", max_tokens=2, sampler=GREEDY))
    in_parts += ids_of(either.generate(max_tokens=4, sampler=GREEDY))
    assert in_parts == once and either.tokens == (*IDS, *once)


def test_left_half_way_a_run_goes_on_rightly(either):
    tokens = either.generate(IDS, max_tokens=10, sampler=GREEDY)
    made = ids_of(itertools.islice(tokens, 3))
    tokens.close()
    after = either.run([8, 9], keep=["blk.1.resid"])
    assert after.tokens == (8, 9) and after.logits.shape[0] == 2 and after["blk.1.resid"].shape == (2, 64)
    assert either.tokens == (*IDS, *made, 8, 9)
    either.reset()
    whole = either.run([*IDS, *made, 8, 9], keep=["blk.1.resid"])
    assert np.allclose(after.logits, whole.logits[-2:], atol=1e-4)
    assert np.allclose(after["blk.1.resid"], whole["blk.1.resid"][-2:], atol=1e-4)


def test_left_half_way_a_walk_goes_on_rightly(session):
    made = ids_of(itertools.islice(session.generate(IDS, max_tokens=10, sampler=GREEDY), 3))
    walked = session.steps([8, 9]).finish()
    session.reset()
    assert walked.tokens == (8, 9)
    assert np.allclose(walked.logits, session.run([*IDS, *made, 8, 9]).logits[-2:], atol=1e-4)


def test_a_run_between_two_tokens_is_part_of_what_follows(session):
    tokens = session.generate(IDS, max_tokens=10, sampler=GREEDY)
    first = next(tokens).id
    session.run([8, 9])
    second = next(tokens).id
    assert session.tokens == (*IDS, first, 8, 9, second)
    session.reset()
    assert second == session.run([*IDS, first, 8, 9]).logits[-1].argmax()


def test_a_reset_between_two_tokens_ends_it(session):
    tokens = session.generate(IDS, max_tokens=10, sampler=GREEDY)
    next(tokens)
    session.reset()
    with pytest.raises(kit.ArgumentError, match="nothing to continue"):
        next(tokens)


def test_it_ends_before_an_end_of_generation_token(session):
    assert session.tokenizer.eog_ids == {2}
    assert ids_of(session.generate(IDS, max_tokens=10, sampler=Script(50, 60, 2, 70))) == [50, 60]
    assert session.tokens == (*IDS, 50, 60)


@pytest.mark.parametrize(
    ("stop", "said"),
    [(["\n\n"], "one\ntwo"), ("o", ""), (["xyz", "two", "ee"], "one\n"), (["nothing of it"], None), ([], None)],
)
def test_it_ends_before_a_stop_string(session, stop, said):
    text = "one\ntwo\n\nthree"
    made = session.generate(IDS, max_tokens=len(text), sampler=say(text), stop=stop)
    assert "".join(token.text for token in made) == (text if said is None else said)


def test_a_long_stop_string_is_found(session):
    stop = "abc" * 110
    made = list(session.generate(IDS, max_tokens=400, sampler=say(stop + "more"), stop=stop))
    assert "".join(token.text for token in made) == ""
    assert len(made) == len(stop)


def test_an_empty_stop_string_is_refused(session):
    for stop in ("", ["a", ""]):
        with pytest.raises(kit.ArgumentError, match="stop string is empty"):
            session.generate(IDS, stop=stop)


def test_streaming_never_splits_a_character(session):
    text = "naïve — 漢字 🙂!"
    made = list(session.generate(IDS, max_tokens=len(text.encode()), sampler=say(text)))
    assert "".join(token.text for token in made) == text
    assert all("\ufffd" not in token.text for token in made)
    assert [token.text for token in made if token.text] == list(text)


def test_half_a_character_at_the_end_becomes_a_replacement_character(session):
    half = Script(*(byte + 3 for byte in "né".encode()[:2]))
    assert "".join(token.text for token in session.generate(IDS, max_tokens=2, sampler=half)) == "n\ufffd"


def test_the_end_of_the_cache_leaves_a_usable_session(model):
    with model.session(n_ctx=8) as session:
        made = []
        tokens = session.generate(IDS, max_tokens=100, sampler=say("abcdefghij"))
        with pytest.raises(kit.CacheFull, match="n_ctx=8"):
            made.extend(token.text for token in tokens)
        assert "".join(made) == "abcde"  # the last needs no cell until it is run itself
        with pytest.raises(kit.CacheFull):
            session.run([5])
        session.reset()
        with model.session(n_ctx=64) as roomy:
            assert np.allclose(session.run(IDS).logits, roomy.run(IDS).logits, atol=1e-5)


def test_what_the_sampler_raises_leaves_the_session_as_it_stood(session):
    tokens = session.generate(IDS, max_tokens=5, sampler=Script(50))
    assert next(tokens).id == 50
    with pytest.raises(RuntimeError):  # StopIteration of the script, inside a generator
        next(tokens)
    after = session.run([9]).logits
    session.reset()
    assert np.allclose(after, session.run([*IDS, 50, 9]).logits[-1:], atol=1e-4)


@pytest.mark.parametrize("said", [-1, 264, 2**40, None, 1.7, float("nan"), "3"])
def test_an_id_that_is_none_never_gets_into_the_session(session, said):
    tokens = session.generate(IDS, max_tokens=5, sampler=Script(50, said))
    assert next(tokens).id == 50
    with pytest.raises(kit.ArgumentError, match=r"sample\(\) of Script gave .*expected a token id.* to 263"):
        next(tokens)
    assert session.tokens == (*IDS, 50)
    assert session.run([9]).logits.shape == (1, 264)


def test_an_id_without_a_name_is_a_token_without_text(tmp_path):
    from . import tiny

    more = tiny.Tiny()
    more.weights["token_embd.weight"] = np.resize(more.weights["token_embd.weight"], (300, 64))
    tiny.write(tmp_path / "more.gguf", more)
    with kit.load(tmp_path / "more.gguf", n_threads=1) as model, model.session(n_ctx=64) as session:
        assert model.config.n_vocab == 300 and model.tokenizer.n_vocab == 264
        script = Script(*(byte + 3 for byte in b"a"), 280, 299, *(byte + 3 for byte in b"b"))
        made = list(session.generate(IDS, max_tokens=4, sampler=script, logprobs=300))
        assert [token.text for token in made] == ["a", "", "", "b"]
        assert {entry.text for entry in made[0].alternatives if entry.id >= 264} == {""}
        assert session.tokens == (*IDS, *ids_of(made))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"max_tokens": -1}, "max_tokens is -1"), ({"prompt": ""}, "nothing to continue"), ({"prompt": []}, "nothing to")],
)
def test_wrong_arguments_are_refused_at_the_call(session, arguments, message):
    with pytest.raises(kit.ArgumentError, match=message):
        session.generate(**{"prompt": IDS} | arguments)


def test_text_goes_on_without_another_first_token(session):
    session.run("ab")
    assert session.tokens[0] == 1
    list(session.generate("cd", max_tokens=1, sampler=say("e")))
    assert session.tokens == (1, *(3 + byte for byte in b"abcde"))


def test_a_token_carries_the_likeliest_ones_at_its_place(either):
    made = list(either.generate(IDS, max_tokens=3, sampler=Script(50, 60, 70), logprobs=4))
    either.reset()
    logits = either.run([*IDS, 50, 60]).logits[len(IDS) - 1 :].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    for token, row in zip(made, logprobs, strict=True):
        order = np.argsort(-row, kind="stable")[:4]
        assert [a.id for a in token.alternatives] == order.tolist()
        assert np.allclose([a.logprob for a in token.alternatives], row[order], atol=1e-4)
        assert [a.text for a in token.alternatives] == [either.tokenizer.token(int(i)) for i in order]
        assert abs(token.logprob - row[token.id]) < 1e-4
    assert next(either.generate([5], max_tokens=1, sampler=Script(50))).alternatives == ()


def test_more_alternatives_than_tokens_are_all_tokens(session):
    token = next(session.generate(IDS, max_tokens=1, sampler=Script(50), logprobs=1000))
    n_vocab = session.model.config.n_vocab
    assert len({a.id for a in token.alternatives}) == len(token.alternatives) == n_vocab
    assert abs(sum(np.exp(a.logprob) for a in token.alternatives) - 1) < 1e-5


@pytest.mark.parametrize("logprobs", [-1, 10**6, 1.5, True, "5"])
def test_a_number_of_alternatives_that_is_none_is_refused(session, logprobs):
    with pytest.raises(kit.ArgumentError, match="logprobs is"):
        session.generate(IDS, logprobs=logprobs)


def test_a_repetition_penalty_sees_prompt_and_answer(session):
    sampler = kit.Sampler(temperature=0, presence_penalty=1e4)
    made = ids_of(session.generate(IDS, max_tokens=20, sampler=sampler))
    assert len({*IDS, *made}) == len(IDS) + 20


def test_text_that_may_become_a_stop_string_waits_for_the_next_token(session):
    tokens = session.generate(IDS, max_tokens=9, sampler=say("a<b<end"), stop="<end")
    shown = [next(tokens) for _ in range(2)]
    # "<" comes only with "b", which tells that it begins no stop string.
    assert [token.text for token in shown] == ["a", "<"] and session.tokens[-2:] == (3 + ord("<"), 3 + ord("b"))
    assert "".join(token.text for token in tokens) == "b"


def test_what_was_held_back_comes_out_at_the_end(session):
    made = list(session.generate(IDS, max_tokens=4, sampler=say("ab<e"), stop="<end"))
    assert [token.text for token in made] == ["a", "b", "<", "e"]
    session.reset()
    ended = list(session.generate(IDS, max_tokens=9, sampler=Script(*(3 + b for b in b"a<e"), 2), stop="<end"))
    assert [token.text for token in ended] == ["a", "<", "e"]


def test_what_was_held_back_comes_out_when_the_cache_is_full(model):
    with model.session(n_ctx=8) as session:
        tokens, made = session.generate(IDS, max_tokens=99, sampler=say("abc<en"), stop="<end"), []
        with pytest.raises(kit.CacheFull):
            made.extend(token.text for token in tokens)
        assert "".join(made) == "abc<e"


def test_an_interrupt_between_tokens_keeps_the_session(session):
    class Interrupts(Script):
        def sample(self, logits):
            token = super().sample(logits)
            if token == 0:
                raise KeyboardInterrupt
            return token

    made = []
    tokens = session.generate(IDS, max_tokens=9, sampler=Interrupts(50, 60, 0))
    with pytest.raises(KeyboardInterrupt):
        made.extend(token.id for token in tokens)
    assert made == [50, 60] and session.tokens == (*IDS, 50, 60) and not session.busy
    after = session.run([9]).logits
    session.reset()
    assert np.allclose(after, session.run([*IDS, 50, 60, 9]).logits[-1:], atol=1e-4)


def test_an_interrupt_in_the_middle_of_a_pass_keeps_the_session(session):
    def interrupted(value):
        raise KeyboardInterrupt

    tokens = session.generate(IDS, max_tokens=9, sampler=GREEDY)
    first = next(tokens).id
    with pytest.raises(KeyboardInterrupt):
        session.run([8, 9], patch={"blk.1.resid": interrupted})
    second = next(tokens).id
    session.reset()
    assert second == session.run([*IDS, first]).logits[-1].argmax()
