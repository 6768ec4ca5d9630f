"""Until when the members of a consumer group must be heard, and until when they must have done what they are to: given
shards up, or, of the classic protocol, joined again or asked for their share.

Plain data. Cost: O(1) for a heartbeat, O(members) when a deadline is reached.
"""

from __future__ import annotations

_FOREVER = 1 << 62


class ConsumerSessions:
    __slots__ = ("_deeds", "_sessions", "_wake_ms")

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._deeds: dict[str, int] = {}
        self._wake_ms = _FOREVER
        """Lower bound of all deadlines: heartbeats move theirs without touching it."""

    def touch(self, member_id: str, deadline_ms: int) -> None:
        self._sessions[member_id] = deadline_ms
        self._wake_ms = min(self._wake_ms, deadline_ms)

    def await_member_action(self, member_id: str, deadline_ms: int | None) -> None:
        """None: nothing is to be done any more."""
        if deadline_ms is None:
            self._deeds.pop(member_id, None)
        else:
            self._deeds[member_id] = deadline_ms
            self._wake_ms = min(self._wake_ms, deadline_ms)

    def awaits_member_action(self, member_id: str) -> bool:
        return member_id in self._deeds

    def forget(self, member_id: str) -> None:
        self._sessions.pop(member_id, None)
        self._deeds.pop(member_id, None)

    def due(self, now_ms: int) -> list[str]:
        """Members that were not heard in time, or have not done in time what they are to."""
        if now_ms < self._wake_ms:
            return []
        late = [*self._late(self._sessions, now_ms), *self._late(self._deeds, now_ms)]
        left = [*self._sessions.values(), *self._deeds.values()]
        self._wake_ms = min((deadline for deadline in left if deadline > now_ms), default=_FOREVER)
        return list(dict.fromkeys(late))

    @staticmethod
    def _late(deadlines: dict[str, int], now_ms: int) -> list[str]:
        return [member_id for member_id, deadline_ms in deadlines.items() if deadline_ms <= now_ms]

    def next_ms(self) -> int | None:
        """When `due` is to be asked; it may turn out to be too early, never too late."""
        return self._wake_ms if self._wake_ms < _FOREVER else None
