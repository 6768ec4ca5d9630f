"""The object store: whole objects, created once, read, deleted. It may say no; what the network does to its answers
makes an upload's outcome unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.machines.restart.restart_events import Producers
from stratalog.model.errors import AlreadyExists, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_sim.environment.disk import Batch
from stratalog_sim.environment.process import Process, Request


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Batches of one segment, with the digest of the log before and behind them."""

    key: SegmentKey
    batches: tuple[Batch, ...]
    digest_before: bytes
    digest_after: bytes


@dataclass(frozen=True, slots=True)
class StoredManifest:
    key: SegmentKey
    parts: tuple[str, ...]
    """Keys of the objects, in order."""
    digest: bytes
    table: Producers
    """Of producers, at the segment's end."""


Stored: TypeAlias = tuple[StoredPart, ...] | StoredManifest
"""A chunk has one part, a bundle several."""


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    body: Stored

    def __str__(self) -> str:
        return f"put {self.key}"


@dataclass(frozen=True, slots=True)
class Get:
    key: str

    def __str__(self) -> str:
        return f"get {self.key}"


@dataclass(frozen=True, slots=True)
class Delete:
    key: str

    def __str__(self) -> str:
        return f"delete {self.key}"


@dataclass(frozen=True, slots=True)
class ListObjects:
    """All there are, by name."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    modified_ms: int
    body: Stored
    """Its name tells as much of it as who lists needs."""


@dataclass
class Store(Process):
    tell: Callable[..., None] = print
    refuses: float = 0.0
    """Share of requests it says no to."""

    def __post_init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self._modified_ms: dict[str, int] = {}

    def put(self, key: str, body: Stored) -> None:
        self.objects[key] = body

    def asked(self, sender: str, request: Request) -> None:
        if self.refuses and self.scheduler.rng.random() < self.refuses:
            self.reply(sender, request, Unavailable("slow down"))
            return
        match request.what:
            case Put(key, body):
                if key in self.objects:
                    self.reply(sender, request, AlreadyExists(f"{key} is there already"))
                    return
                self.put(key, body)
                self._modified_ms[key] = self.scheduler.now_ms
                self.tell(f"store has {key}")
                self.reply(sender, request, None)
            case Get(key):
                self.reply(sender, request, self.objects.get(key) or NotFound(f"no object {key}"))
            case ListObjects():
                found = [StoredObject(key, self._modified_ms[key], self.objects[key]) for key in sorted(self.objects)]
                self.reply(sender, request, tuple(found))
            case Delete(key):
                if self.objects.pop(key, None) is not None:
                    self.tell(f"store has no more {key}")
                self.reply(sender, request, None)
            case _:
                raise AssertionError(f"{request.what} is nothing for a store")
