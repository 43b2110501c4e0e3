"""Arguments of the wrong kind end in an exception of kit's that says what to give instead."""

from __future__ import annotations

import numpy as np
import pytest

import kit

CASES = {
    "a list for an output": (lambda ctx, x: ctx.graph([x + x]), r"one by one"),
    "a number for an output": (lambda ctx, x: ctx.graph(5), r"not int"),
    "a list for feeds": (lambda ctx, x: ctx.graph(x + x).compute([1, 2]), r"mapping"),
    "a number for a backend": (lambda ctx, x: kit.Context(5), r"kit\.Backend"),
    "a name for devices": (lambda ctx, x: kit.Backend("CPU.0"), r"a list of names"),
    "text for threads": (lambda ctx, x: kit.Backend(n_threads="2"), r"'2'"),
    "an array added": (lambda ctx, x: x + np.ones(4), r"x \(4,\).*ctx\.tensor"),
    "an array added to": (lambda ctx, x: np.ones(4) + x, r"x \(4,\).*ctx\.tensor"),
    "an array subtracted from": (lambda ctx, x: np.ones(4) - x, r"x \(4,\).*ctx\.tensor"),
    "an array multiplied with": (lambda ctx, x: x @ np.ones((4, 2)), r"x \(4,\).*ctx\.tensor"),
    "a number for a model": (lambda ctx, x: kit.load(5), r"smollm2-135m"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_message_says_what_to_give(case, ctx):
    call, message = CASES[case]
    with pytest.raises((kit.ArgumentError, kit.DTypeError), match=message):
        call(ctx, ctx.input((4,), name="x"))
