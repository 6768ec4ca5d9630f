"""Silence of a client that is the port's own: what lies unread in a socket, and looks that come late."""

from __future__ import annotations

import socket

from stratalog.event_loop.patience import TimedChecks, has_unread, is_left


def test_bytes_and_the_end_lie_unread_until_they_are_read() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        assert not has_unread(ours.fileno()) and not is_left(ours.fileno())
        theirs.send(b"x")
        assert has_unread(ours.fileno()) and not is_left(ours.fileno())
        assert ours.recv(10) == b"x"
        assert not has_unread(ours.fileno())
        theirs.close()
        assert has_unread(ours.fileno()) and is_left(ours.fileno())
    assert not has_unread(ours.fileno()), "closed"


def test_a_check_that_comes_late_by_a_period_spares_all_once() -> None:
    now_s = 100.0
    checks = TimedChecks(lambda: now_s, 1.0)
    told = []
    for passed_s in (1.0, 1.9, 2.1, 1.0, 9.0, 9.0, 9.0):
        now_s += passed_s
        told.append(checks.is_late())
    assert told == [False, False, True, False, True, False, True]
