"""Several sequences in one cache: what they share, what each sees, what is freed."""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit.models.cache.cells import MAX_SEQUENCES, Cells

PREFIX = [1, 100, 7, 42, 42, 250]
PROMPTS = [[5, 6, 7], [9], [30, 31, 32, 33, 34]]
GREEDY = kit.Sampler(temperature=0)

# A batch sums over other padding than each sequence alone: mean squared error over mean square.
NMSE = 2e-6


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


@pytest.fixture(params=[None, True], ids=["permuted", "flash"])
def either(request, model):
    return model.session(n_ctx=128, flash_attn=request.param)


def alone(session: kit.Session, ids: list[int]) -> np.ndarray:
    with session.model.session(n_ctx=128, flash_attn=session.attention.kind == "flash") as other:
        return other.run(ids).logits


def wild(seed: int) -> kit.Sampler:
    """A sampler that repeats itself by its seed; greedy, the tiny model says one token for ever."""
    return kit.Sampler(temperature=10, top_k=0, top_p=1, min_p=0, seed=seed)


def said_alone(session: kit.Session, ids: list[int], n: int, sampler: kit.Sampler) -> list[int]:
    with session.model.session(n_ctx=128, flash_attn=session.attention.kind == "flash") as other:
        return [token.id for token in other.generate(ids, max_tokens=n, sampler=sampler)]


def tokens_alone(session: kit.Session, prompts: list, n: int, sampler: kit.Sampler) -> list[int]:
    with session.model.session(n_ctx=128, flash_attn=session.attention.kind == "flash") as other:
        for prompt in prompts:
            list(other.generate(prompt, max_tokens=n, sampler=sampler))
        return list(other.tokens)


def test_prompts_in_one_batch_give_the_logits_of_each_alone(either):
    with either.fork(3) as branches:
        runs = branches.run(PROMPTS, logits="all")
        for run, prompt in zip(runs, PROMPTS, strict=True):
            assert run.tokens == tuple(prompt)
            assert nmse(run.logits, alone(either, prompt)) < NMSE


def test_a_shared_prefix_is_stored_once(either):
    either.run(PREFIX)
    with either.fork(3) as branches:
        assert either.cache.n_used == len(PREFIX)
        runs = branches.run(PROMPTS)
        assert either.cache.n_used == len(PREFIX) + sum(map(len, PROMPTS))
        for branch, run, prompt in zip(branches, runs, PROMPTS, strict=True):
            assert branch.tokens == (*PREFIX, *prompt)
            assert nmse(run.logits, alone(either, PREFIX + prompt)[-1:]) < NMSE
    assert either.cache.n_used == len(PREFIX) and either.tokens == tuple(PREFIX)


def test_a_batch_larger_than_a_pass_goes_in_pieces(model):
    with model.session(n_ctx=128, n_ubatch=4) as session, session.fork(3) as branches:
        runs = branches.run(PROMPTS, logits="all")
        assert all(nmse(run.logits, alone(session, ids)) < NMSE for run, ids in zip(runs, PROMPTS, strict=True))


def test_branches_go_on_from_what_they_have_seen(either):
    either.run(PREFIX)
    with either.fork(2) as branches:
        branches.run([[5, 6], [8]])
        runs = branches.run([[7], None], logits="all")
        assert nmse(runs[0].logits, alone(either, [*PREFIX, 5, 6, 7])[-1:]) < NMSE
        assert runs[1].logits.shape == (0, either.model.config.n_vocab) and runs[1].tokens == ()
        assert nmse(branches.run([None, [9]])[1].logits, alone(either, [*PREFIX, 8, 9])[-1:]) < NMSE


def test_the_session_and_its_branches_do_not_see_each_other(either):
    either.run(PREFIX)
    with either.fork(1) as branches:
        branches.run([[5, 6, 7]])
        assert nmse(either.run([9, 9]).logits, alone(either, [*PREFIX, 9, 9])[-2:]) < NMSE
        assert nmse(branches.run([[8]])[0].logits, alone(either, [*PREFIX, 5, 6, 7, 8])[-1:]) < NMSE


def test_one_branch_can_be_kept(either):
    either.run(PREFIX)
    branches = either.fork(3)
    branches.run(PROMPTS)
    branches.keep(2)
    assert branches.closed and either.tokens == (*PREFIX, *PROMPTS[2])
    assert either.cache.n_used == either.n_past == len(PREFIX) + len(PROMPTS[2])
    assert nmse(either.run([77]).logits, alone(either, [*PREFIX, *PROMPTS[2], 77])[-1:]) < NMSE


def test_generating_for_several_prompts_gives_what_each_gives_alone(either):
    either.run(PREFIX)
    made = either.generate_batch(PROMPTS, max_tokens=8, sampler=[wild(seed) for seed in range(3)])
    for seed, (tokens, prompt) in enumerate(zip(made, PROMPTS, strict=True)):
        assert [token.id for token in tokens] == said_alone(either, PREFIX + prompt, 8, wild(seed))
    assert either.tokens == tuple(PREFIX) and either.cache.n_used == len(PREFIX)


def test_generating_from_nothing_takes_text_with_its_first_token(session):
    one, two = session.generate_batch(["ab", "c"], max_tokens=4, sampler=[wild(1), wild(2)])
    assert [token.id for token in one] == said_alone(session, [1, 100, 101], 4, wild(1))
    assert [token.id for token in two] == said_alone(session, [1, 102], 4, wild(2))


def test_several_continuations_of_one_text(either):
    either.run(PREFIX)
    made = either.generate_batch(["", "", ""], max_tokens=8, sampler=[wild(1), wild(2), wild(1)])
    ids = [[token.id for token in tokens] for tokens in made]
    assert ids[0] == ids[2] == said_alone(either, PREFIX, 8, wild(1))
    assert ids[1] == said_alone(either, PREFIX, 8, wild(2))


def test_branches_generate_more_after_they_generated(either):
    with either.fork(2) as branches:
        samplers = [wild(1), wild(2)]
        for prompts in ([[5, 6], [7]], ["", ""], [[8], ""]):
            list(branches.generate(prompts, max_tokens=3, sampler=samplers))
        assert list(branches[1].tokens) == tokens_alone(either, [[7]], 9, wild(2))
        assert list(branches[0].tokens) == tokens_alone(either, [[5, 6], "", [8]], 3, wild(1))
    assert either.n_past == 0


def test_a_sequence_that_ends_lets_the_others_go_on(session):
    class Script:
        def __init__(self, *ids: int) -> None:
            self._ids = iter(ids)

        def sample(self, logits: np.ndarray) -> int:
            return next(self._ids)

    made = session.generate_batch([[5], [6]], max_tokens=4, sampler=[Script(50, 2), Script(60, 61, 62, 63)])
    assert [[token.id for token in tokens] for tokens in made] == [[50], [60, 61, 62, 63]]


def test_generating_reads_the_weights_once_for_all(session, monkeypatch):
    compute, calls = session.model.backend.compute, []
    monkeypatch.setattr(session.model.backend, "compute", lambda graph, watch=None: calls.append(compute(graph, watch)))
    session.generate_batch(PROMPTS, max_tokens=8, sampler=GREEDY)
    assert len(calls) == 8


def test_a_token_given_out_before_the_fork_is_shared(session):
    tokens = session.generate(PREFIX, max_tokens=10, sampler=GREEDY)
    given = next(tokens).id
    tokens.close()
    with session.fork(2) as branches:
        assert branches[0].tokens == (*PREFIX, given)
        run = branches.run([[9], [8]])[0]
        assert nmse(run.logits, alone(session, [*PREFIX, given, 9])[-1:]) < NMSE


def test_too_many_tokens_for_all_move_no_branch(model):
    with model.session(n_ctx=16) as session:
        session.run(PREFIX)
        with session.fork(2) as branches:
            with pytest.raises(kit.CacheFull, match=r"12 tokens do not fit.*6 are used, 10 free"):
                branches.run([[5] * 6, [6] * 6])
            assert session.cache.n_used == 6 and branches[0].tokens == tuple(PREFIX)
            assert len(branches.run([[5] * 5, [6] * 5])) == 2


def test_holes_are_filled(either):
    first, second = either.fork(1), either.fork(1)
    first.run([[5] * 20])
    second.run([[6] * 20])
    first.close()
    expected = alone(either, [3, 4, *range(10, 40)])
    either.run([3, 4])
    assert nmse(either.run(list(range(10, 40))).logits, expected[2:]) < NMSE
    assert either.cache.cells.of().tolist() == [*range(20), *range(40, 52)]


def test_reset_and_close_end_branches(model):
    session = model.session(n_ctx=64)
    branches = session.fork(2)
    branches.run([[5], [6]])
    session.reset()
    assert branches.closed and session.cache.n_used == 0
    again = session.fork(1)
    session.close()
    for use in (lambda: branches.run([[5], [6]]), lambda: again.run([[5]]), lambda: branches.keep(0)):
        with pytest.raises(kit.ClosedError, match=r"fork\(\) again"):
            use()
    again.close()


def test_what_is_shared_cannot_shift(session):
    session.run(PREFIX)
    with session.fork(1), pytest.raises(kit.ArgumentError, match="branches"):
        session.shift(0, 2)
    assert session.shift(0, 2) == 2


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda session, branches: session.fork(0), "n is 0"),
        (lambda session, branches: session.fork(1.5), "n is 1.5"),
        (lambda session, branches: session.fork(MAX_SEQUENCES), "close"),
        (lambda session, branches: branches.run([[5]]), "1 prompts for 2 branches"),
        (lambda session, branches: branches.run([[5], [999]]), "token 999"),
        (lambda session, branches: branches.run([[5], [6]], logits="first"), "'first'"),
        (lambda session, branches: branches.generate([[5]]), "1 prompts for 2 branches"),
        (lambda session, branches: branches.generate([[5], [6]], sampler=[GREEDY]), "1 samplers for 2"),
        (lambda session, branches: branches.generate([[5], []]), "nothing to continue"),
        (lambda session, branches: branches.generate([[5], [6]], max_tokens=-1), "max_tokens is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(session, use, message):
    with session.fork(2) as branches:
        with pytest.raises(kit.ArgumentError, match=message):
            use(session, branches)
        assert branches[0].tokens == () and session.cache.n_used == 0
    assert len(session.fork(MAX_SEQUENCES - 1)) == MAX_SEQUENCES - 1


def test_branches_say_what_they_are(session):
    session.run(PREFIX)
    with session.fork(2) as branches:
        branches.run([[5, 6], [7]])
        assert "2 of Session" in repr(branches) and "tokens 8, 7" in repr(branches)
    assert repr(branches) == "Branches(closed)"


def test_a_batch_allocates_nothing(model):
    with model.session(n_ctx=64, n_ubatch=8) as session:
        with kit.Tracker() as memory:
            session.generate_batch(PROMPTS, max_tokens=6, sampler=GREEDY)
        events = [event for event in memory.report().events if event.action == "alloc" and event.size]
    assert [str(event) for event in events if event.kind != "context" and event.purpose != "metadata"] == []


def test_free_cells_are_found_anywhere():
    cells = Cells(8, 6)
    batch = cells.batch([10, 11, 12])
    cells.enter(batch)
    cells.cut(0, 1, 2)
    assert cells.batch([13, 14]).cells.tolist() == [1, 3] and cells.end() == 3
    assert cells.visible(cells.batch([13, 14]), 5).tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, False],
    ]
    with pytest.raises(kit.CacheFull, match=r"5 tokens do not fit.*n_ctx=6, 2 are used, 4 free"):
        cells.batch([1] * 5)


def test_an_interrupt_between_cache_and_token_list_is_undone(session, monkeypatch):
    def interrupted(ids):
        raise KeyboardInterrupt

    session.run(PREFIX)
    monkeypatch.setattr(session, "_seen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run([9, 9, 9])
    monkeypatch.undo()
    assert session.tokens == tuple(PREFIX)
    assert nmse(session.run([5, 6]).logits, alone(session, [*PREFIX, 5, 6])[-2:]) < NMSE
    assert session.cache.cells.of().tolist() == list(range(len(PREFIX) + 2))
