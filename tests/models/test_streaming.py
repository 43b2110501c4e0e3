"""Stop strings: nothing of one gets out, however the text is cut into tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.models.text.streaming import Holder, StopFinder, Token

PIECES = st.lists(st.text("ab\n", max_size=3), max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def before_stop(text: str, stops: list[str]) -> str:
    """What comes before the stop string that is complete first, character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(PIECES, STOPS)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(pieces, stops):
    finder = StopFinder(stops)
    out = ""
    for piece in pieces:
        out += finder.push(piece)
        if finder.found:
            break
    else:
        out += finder.flush()
    assert out == before_stop("".join(pieces), stops)


@given(PIECES, STOPS)
def test_what_is_out_can_no_longer_be_part_of_a_stop_string(pieces, stops):
    finder = StopFinder(stops)
    out = seen = ""
    for piece in pieces:
        out += finder.push(piece)
        seen += piece
        if finder.found:
            return
        held = seen[len(out) :]
        assert seen.startswith(out)
        # The least that has to be held: the longest end that begins a stop string, and not a character more.
        needed = max(
            (n for n in range(len(seen) + 1) for stop in stops if stop[:n] == seen[len(seen) - n :]), default=0
        )
        assert len(held) == needed


@given(PIECES, st.data())
def test_each_token_gets_the_text_that_is_its_own(pieces, data):
    holder, out, sent, text = Holder(), [], 0, ""
    for i, piece in enumerate(pieces):
        holder.add(Token(i, piece, 0.0))
        text += piece
        upto = data.draw(st.integers(sent, len(text)))
        out += holder.certain(text[sent:upto], keep_last=data.draw(st.booleans()))
        sent = upto
    out += holder.rest(text[sent:])
    assert [token.id for token in out] == list(range(len(pieces)))
    assert [token.text for token in out] == pieces


def test_text_that_is_over_goes_to_the_last_token_and_text_cut_off_to_none():
    holder = Holder()
    for i, piece in enumerate(["ab", "", "cd"]):
        holder.add(Token(i, piece, 0.0))
    assert [token.text for token in holder.rest("abcd!")] == ["ab", "", "cd!"]
    for i, piece in enumerate(["ab", "cd", "ef"]):
        holder.add(Token(i, piece, 0.0))
    assert [token.text for token in holder.rest("abc")] == ["ab", "c", ""]
