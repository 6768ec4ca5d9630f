"""What clients of a group may be told: no commit is lost, and no shard has two readers.

A commit whose outcome is unknown may still get into the log, behind later ones, for as long as its request may be on
its way. So an answer may go back to such a commit, and to no other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""A group, and a shard that it reads."""


class GroupTruth:
    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._last_number = 0
        self._floors: dict[Place, int] = {}
        """The newest commit that a client learned of."""
        self._unanswered: dict[Place, dict[int, None]] = {}
        self._readers: dict[tuple[int, int], str] = {}
        """By generation and shard."""
        self._owners: dict[int, tuple[str, float]] = {}
        """By shard: the client that reads it, and until when its session lasts at least."""
        self.commits = 0
        self._is_owed = True

    def lost_its_log(self) -> None:
        """By power cuts that its flush policy does not cover: what is in it from now on is not known here."""
        self._is_owed = False

    # Offsets --------------------------------------------------------------------------------------------------------
    def begin_commit(self, place: Place) -> int:
        self._last_number += 1
        self._unanswered.setdefault(place, {})[self._last_number] = None
        return self._last_number

    def acknowledged(self, place: Place, number: int) -> None:
        self.commits += 1
        self._unanswered[place].pop(number, None)
        self._floors[place] = max(self._floors.get(place, 0), number)

    def asked(self, place: Place) -> int:
        """What an answer to a question of now must show at least."""
        return self._floors.get(place, 0)

    def shown(self, who: str, place: Place, number: int, least: int) -> None:
        is_late = number in self._unanswered.get(place, {})
        if number < least and not is_late and self._is_owed:
            what = f"{who} is shown commit {number} of {place}, and {least} was known when it asked"
            self._fail("no committed offset is lost", what)
        if is_late:
            self._floors[place] = number
        else:
            self._floors[place] = max(self._floors.get(place, 0), number)

    # Readers --------------------------------------------------------------------------------------------------------
    def assigned(self, generation: int, member_id: str, shards: tuple[int, ...]) -> None:
        for shard in shards:
            reader = self._readers.setdefault((generation, shard), member_id)
            if reader != member_id and self._is_owed:
                what = f"{member_id} and {reader} read shard {shard} in generation {generation}"
                self._fail("a shard has one reader in a generation", what)

    def owns(self, who: str, shards: tuple[int, ...], asked_s: float, now_s: float, session_s: float) -> None:
        """A heartbeat that was sent at `asked_s` has this answer."""
        for shard in shards:
            owner, until_s = self._owners.get(shard, (who, 0.0))
            if owner != who and until_s > now_s and self._is_owed:
                self._fail("a shard has one reader at a time", f"{who} and {owner} read shard {shard}")
            self._owners[shard] = who, asked_s + session_s

    def gave_up(self, who: str, shards: tuple[int, ...]) -> None:
        for shard in shards:
            if self._owners.get(shard, ("", 0.0))[0] == who:
                del self._owners[shard]
