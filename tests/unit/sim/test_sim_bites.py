"""The simulator bites: deliberate bugs, planted into the real machines, are found. `make sim-bugs` looks for all."""

from __future__ import annotations

import pytest

from stratalog_sim.bugs.bugs import BUGS, find

SEEDS = 500
"""At most: the first that finds it ends the search, and which one it is moves with every change of a machine."""

# Those that few seeds find; the others take longer than a test should. Bugs of machines that `test_product_worlds.py`
# plants as well are left out.
QUICK = {
    "seal without digest": "seal records are true",
    "upload above HW": "decided",
    "delete before commit": "the last copy is never deleted",
    "unknown taken as refused": "had been refused",
    "tail not doubted": "an offset is given once",
    "producers forgotten at the successor": "the log matches the answers to clients",
    "any holder uploads": "one uploader per commit",
    "uncommitted upload is swept": "nothing referenced is missing",
    "commit of a refused put": "nothing referenced is missing",
    "copy proven from memory": "each listed replica has the segment on its disk",
    "metadata not kept": "metadata survive a restart",
    "follower reports the end": "a consumer never goes back",
    "copy dropped before its replacement": "",  # the table's own invariant, or the last copy is deleted
    "fence not persisted": "a promise is on the disk before it is reported",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    found = find(BUGS[name], range(SEEDS))
    assert found is not None, f"{SEEDS} seeds do not see: {BUGS[name].what}"
    assert QUICK[name] in found.promise
    assert found.history
