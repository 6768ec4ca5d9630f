"""The network: messages between named places, which get lost, come twice, late, or in another order.

A message goes to whoever lives at that place when it arrives. A link is one-way: cut it and its messages are lost,
those under way too. Nothing tells the sender what became of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stratalog_sim.environment.scheduler import EVER, Scheduler


class Receiver(Protocol):
    """A process that takes messages."""

    @property
    def is_alive(self) -> bool: ...

    def receive(self, sender: str, message: Any) -> None:
        """Messages are whatever sender and receiver agree on."""
        ...


@dataclass(slots=True)
class Weather:
    """How bad it is. Shares of messages, in [0, 1)."""

    lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    """Takes up to `slow_ms` instead of `fast_ms`."""
    fast_ms: int = 6
    slow_ms: int = 400


class Network:
    def __init__(self, scheduler: Scheduler, tell: Callable[..., None]) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._receivers: dict[str, Receiver] = {}
        self.weather = Weather()
        self.cut: dict[tuple[str, str], None] = {}
        """One-way links that carry nothing."""
        self._last_number = 0
        self._last_due: dict[tuple[str, str], int] = {}
        """When what was sent in order last arrives."""

    def next_number(self) -> int:
        """The number of a new request. No number is used twice, so an answer to an earlier life matches no request."""
        self._last_number += 1
        return self._last_number

    def join(self, name: str, receiver: Receiver) -> None:
        """From now on messages to `name` come here."""
        self._receivers[name] = receiver

    def send(
        self, sender: str, receiver: str, message: Any, *, may_repeat: bool = True, is_in_order: bool = False
    ) -> None:
        """`may_repeat` False: the carrier never delivers the message twice (one connection, no retries). `is_in_order`:
        nor does it deliver the message before those sent there earlier in order; it may still lose it."""
        rng, weather = self._scheduler.rng, self.weather
        if (sender, receiver) in self.cut or (weather.lost and rng.random() < weather.lost):
            self._tell("lost on the way", sender, "->", receiver, message)
            return
        copies = 2 if may_repeat and not is_in_order and weather.twice and rng.random() < weather.twice else 1
        for _ in range(copies):
            most_ms = weather.slow_ms if weather.slow and rng.random() < weather.slow else weather.fast_ms
            delay_ms = 1 + int(rng.random() * most_ms)
            if is_in_order:
                due_ms = max(self._scheduler.now_ms + delay_ms, self._last_due.get((sender, receiver), 0))
                self._last_due[sender, receiver] = due_ms
                delay_ms = due_ms - self._scheduler.now_ms
            self._scheduler.after(delay_ms, EVER, self._arrive, sender, receiver, message)

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        place = self._receivers.get(receiver)
        if (sender, receiver) in self.cut or place is None or not place.is_alive:
            return
        place.receive(sender, message)
