"""Which lives may write under an epoch, by the claims in the bucket."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.tiering.claims import (
    ClaimForked,
    ClaimHeld,
    ClaimStep,
    PutClaim,
    ReadClaim,
    holder_name,
    is_known,
    next_step,
)

OURS, BEFORE, STRANGER = UUID(int=1), UUID(int=2), UUID(int=3)
HOLDERS = (holder_name("node-1/8", OURS), holder_name("node-1/7", BEFORE), "node-1/6", "")


@pytest.mark.parametrize(
    ("listed", "nonces", "step"),
    [
        ((), {}, PutClaim()),
        ((4,), {}, ReadClaim(4)),
        ((4,), {4: BEFORE}, PutClaim()),
        ((4,), {4: STRANGER}, ClaimForked(4)),
        ((4, 5), {4: BEFORE, 5: OURS}, ClaimHeld((4,))),
        ((5,), {}, ReadClaim(5)),
        ((5,), {5: STRANGER}, ClaimForked(5)),
        ((5, 6), {5: OURS}, ClaimForked(6)),
        ((6,), {}, ClaimForked(6)),
        ((6,), {6: BEFORE}, ClaimForked(6)),
        ((3, 5), {5: OURS}, ReadClaim(3)),
        ((3, 5), {5: OURS, 3: STRANGER}, ClaimForked(3)),
    ],
)
def test_an_epoch_is_held_only_over_claims_of_lives_that_metadata_knows(
    listed: tuple[int, ...], nonces: dict[int, UUID], step: ClaimStep
) -> None:
    assert next_step(listed, nonces, 5, HOLDERS) == step


def test_a_life_is_known_by_its_whole_nonce() -> None:
    assert is_known(OURS, HOLDERS) and is_known(BEFORE, HOLDERS)
    assert not is_known(STRANGER, HOLDERS) and not is_known(OURS, ("node-1/8",))
