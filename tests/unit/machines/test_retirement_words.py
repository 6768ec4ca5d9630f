"""What a retirement says of itself at each step."""

from __future__ import annotations

from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.views.retirement_status import words_of


def test_each_step_says_something_of_its_own() -> None:
    said = {step: words_of(Retirement("disk", RetireMode.OFFLOAD, step, 0, 0), 3, 1024, 0, -1) for step in RetireStep}
    assert len(set(said.values())) == len(RetireStep), said
