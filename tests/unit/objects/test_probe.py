"""A probe ends with an answer, though the store does not say what became of a put."""

from __future__ import annotations

import pytest

from stratalog.model.errors import OutcomeUnknown
from stratalog.objects.opening import open_store
from stratalog.objects.probe import probe_store
from support.faulty_store import Fault, FaultyStore


@pytest.mark.fault("probe-put-unknown")
@pytest.mark.parametrize("script", [(Fault.LOST_ANSWER,), (Fault.CUT,), (Fault.NONE, Fault.CUT)])
async def test_a_put_of_unknown_outcome_is_tried_under_another_name(script: tuple[Fault, ...]) -> None:
    store = FaultyStore(open_store("memory:"), lambda: 0)
    store.script.extend(script)
    assert (await probe_store(store)).conditional_put
    assert len(set(store.puts)) == 2
    assert await store.keys() == [], "whether it landed or not, nothing stays"


@pytest.mark.fault("probe-put-unknown")
async def test_a_store_that_never_says_what_became_of_a_put_ends_the_probe() -> None:
    store = FaultyStore(open_store("memory:"), lambda: 0)
    store.decide = lambda _: Fault.LOST_ANSWER
    with pytest.raises(OutcomeUnknown):
        await probe_store(store)
    assert len(store.puts) == 3 and await store.keys() == []
