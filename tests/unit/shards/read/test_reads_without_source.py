"""A read that no source can answer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest

from stratalog.machines.reading.read_sources import ReadSource
from stratalog.model.errors import Corrupt, Unavailable
from stratalog_node.shards.read.other_sources import _first


class Block(bytearray):
    """Bytes that tell when they are freed."""


@pytest.mark.fault("consumers-ask-block-bucket")
@pytest.mark.parametrize("answering", [0, 2], ids=["nobody answers", "another one answers"])
async def test_what_a_source_gave_in_vain_goes_with_its_error(answering: int) -> None:
    """A server's collector looks seldom, and a consumer asks for what is damaged again and again."""
    order = [(ReadSource.STORE, (1,)), (ReadSource.STORE, (2,))]
    given: list[weakref.ref[Block]] = []

    async def ask(_: ReadSource, nodes: Sequence[int]) -> int:
        block = Block(1 << 20)
        given.append(weakref.ref(block))
        if answering in nodes:
            return answering
        raise Corrupt("a bit flipped", source="block", position=0) if 1 in nodes else Unavailable("it is away")

    gc.disable()
    try:
        if answering:
            assert await _first(order, ask) == answering
        else:
            with pytest.raises(Unavailable, match=r"a bit flipped.*it is away"):
                await _first(order, ask)
        assert [block() for block in given] == [None, None]
    finally:
        gc.enable()
