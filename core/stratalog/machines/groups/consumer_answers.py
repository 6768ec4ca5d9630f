"""Answers of a consumer group that wait until the writes that they rest on are durable: all writes before them.

Plain data. Invariant: each answer is released once, when no write before it is under way, or as a failure.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    AnswerShare,
    ConsumerAnswer,
    ConsumerGroupEffect,
    DurableAnswer,
    ShareAnswer,
)
from stratalog.machines.groups.group_events import AnswerJoin, AnswerLeave, JoinAnswer
from stratalog.model.groups.group import GroupError


class WaitingAnswers:
    __slots__ = ("_held", "_under_way")

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        """Tickets of writes."""
        self._held: deque[tuple[int, DurableAnswer]] = deque()
        """Answers, and the newest write that each waits for."""

    @property
    def is_writing(self) -> bool:
        return bool(self._under_way)

    def write_begun(self, ticket: int) -> None:
        self._under_way.add(ticket)

    def give(self, answer: DurableAnswer, effects: list[ConsumerGroupEffect]) -> None:
        if self._under_way:
            self._held.append((max(self._under_way), answer))
        else:
            effects.append(answer)

    def write_done(self, ticket: int, effects: list[ConsumerGroupEffect]) -> None:
        self._under_way.discard(ticket)
        self._let_go(effects)

    def write_failed(self, ticket: int, error: GroupError, effects: list[ConsumerGroupEffect]) -> None:
        """Requests that wait for this write, or for a later one that rests on it, get `error` instead of their
        answers."""
        self._under_way.discard(ticket)
        kept: deque[tuple[int, DurableAnswer]] = deque()
        for waits_for, answer in self._held:
            if waits_for < ticket:
                kept.append((waits_for, answer))
            else:
                effects.append(_failed(answer, error))
        self._held = kept
        self._let_go(effects)

    def close(self, error: GroupError, effects: list[ConsumerGroupEffect]) -> None:
        self.write_failed(0, error, effects)
        self._under_way.clear()

    def _let_go(self, effects: list[ConsumerGroupEffect]) -> None:
        while self._held and not (self._under_way and self._held[0][0] >= min(self._under_way)):
            effects.append(self._held.popleft()[1])

    def check_invariants(self) -> None:
        assert not self._held or self._under_way, "a request waits for nothing"


def _failed(answer: DurableAnswer, error: GroupError) -> DurableAnswer:
    match answer:
        case AnswerConsumer(waiter):
            return AnswerConsumer(waiter, ConsumerAnswer(error))
        case AnswerJoin(waiter, joined):
            return AnswerJoin(waiter, JoinAnswer(error, joined.member_id))
        case AnswerShare(waiter):
            return AnswerShare(waiter, ShareAnswer(error))
        case AnswerLeave(waiter, errors):
            return AnswerLeave(waiter, tuple([error] * len(errors)))
        case _:
            assert_never(answer)
