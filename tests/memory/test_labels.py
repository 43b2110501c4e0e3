"""Labels: short, and the same when they are read."""

from __future__ import annotations

import pytest

from kit.core.ledger import Resource
from kit.memory.labels import Label, Labels


@pytest.mark.parametrize(
    "text",
    ["context 17", "17", "x007", "a\n5", "", "9" * 30, "3000000000", "blk.3.attn", "0", "００", "context -1", "é1"],
)
def test_a_label_reads_as_it_was_written(text: str) -> None:
    labels = Labels()
    for owner, name in (("model", text), (text, "mask"), (text, text)):
        number = labels.add(Resource("buffer", 4, name, owner, "inputs"))
        assert labels[number] == Label(owner, "inputs", name)


def test_things_told_alike_share_a_label_and_nothing_has_number_zero() -> None:
    labels = Labels()
    first = labels.add(Resource("buffer", 4, "mask", "model", "inputs"))
    assert labels.add(Resource("buffer", 8, "mask", "model", "inputs", address=16)) == first == 1
    assert labels.add(Resource("buffer", 4, "mask", "model", "weights")) == 2
    assert labels[0] is None
