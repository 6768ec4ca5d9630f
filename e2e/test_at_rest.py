"""E43, the short of it: while nothing changes nothing is written, and a topic that is written to is not written about
all day."""

from __future__ import annotations

import time

import pytest

from stratalog_e2e.budget import Writes, served_writes
from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, Place

pytestmark = pytest.mark.scenario("E43")
REST_S = 130
"""A little longer than two passes over a cluster at rest."""
PER_MINUTE = 15


def test_a_cluster_at_rest_is_not_written_about(stored: Place, operator: Operator) -> None:
    stored.make_cluster()
    stored.make_topic()
    until(lambda: _written_in(stored, 20), lambda count: count == 0, 180, "all that came of the making is told")
    ours, before = Writes(operator), served_writes(stored.kube)
    _let_pass(REST_S)
    assert ours.count() == 0, "by its own count"
    assert served_writes(stored.kube) == before, "by the API server's"

    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    ours, before = Writes(operator), served_writes(stored.kube)
    _let_pass(REST_S)
    served = served_writes(stored.kube) - before
    assert served <= PER_MINUTE * ours.minutes(), f"{served} writes in {ours.minutes():.1f} min of steady traffic"
    traffic.judge()


def _written_in(place: Place, seconds: float) -> int:
    before = served_writes(place.kube)
    _let_pass(seconds)
    return served_writes(place.kube) - before


def _let_pass(seconds: float) -> None:
    """What is shown is that nothing happens in that time: there is no condition to wait for."""
    time.sleep(seconds)
