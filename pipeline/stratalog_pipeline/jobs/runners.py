"""How the pieces of a job are worked on: here, one after another, or by Spark, many at a time.

A piece is a picklable call that may be made any number of times with the same outcome, so a task that Spark repeats, or
runs twice, does no harm. Results come in no particular order. What a piece raises on purpose is raised here, as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

from stratalog.model.errors import StratalogError, Unavailable
from stratalog.objects import ObjectStore

T = TypeVar("T")
R = TypeVar("R")
OpenStore = Callable[[], ObjectStore]
"""Opens an object store in the process that works on a piece: an open store cannot be sent to a task of Spark."""
OnProgress = Callable[[str, int, int], None]
"""Takes what the job works on, how many pieces are done, and how many there are (0 while that is unknown)."""


class Runner(Protocol):
    def __call__(self, work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]: ...


def in_rounds(pieces: Iterable[T], line_of: Callable[[T], Hashable]) -> list[list[T]]:
    """One piece of each line, then the next one of each. If a round ends before the next begins, no two pieces of one
    line are worked on at the same time."""
    lines: dict[Hashable, list[T]] = {}
    for piece in pieces:
        lines.setdefault(line_of(piece), []).append(piece)
    return [[one for one in some if one is not None] for some in zip_longest(*lines.values())]


def one_by_one(work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]:
    """In this process: for small jobs and for tests."""
    for piece in pieces:
        yield work(piece)


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a piece failed, as a result of its task: Spark makes a traceback of what a task raises, its type is lost, and
    so is the exit code."""

    error: StratalogError


@dataclass(frozen=True, slots=True)
class _Guarded(Generic[T, R]):
    work: Callable[[T], R]
    is_repeated: bool
    """Spark tries a task that fails again: what is unavailable now may be there then."""

    def __call__(self, piece: T) -> R | _Failed:
        try:
            return self.work(piece)
        except StratalogError as error:
            if self.is_repeated and isinstance(error, Unavailable):
                raise
            return _Failed(error)


def on_spark(spark: Any) -> Runner:
    """In the tasks of a session, some rounds of all its cores at a time, so that progress can be told."""
    context = spark.sparkContext
    is_repeated = not str(context.master).startswith("local")
    at_a_time = 4 * int(context.defaultParallelism)

    def run(work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]:
        for first in range(0, len(pieces), at_a_time):
            some = pieces[first : first + at_a_time]
            for found in context.parallelize(some, len(some)).map(_Guarded(work, is_repeated)).collect():
                if isinstance(found, _Failed):
                    raise found.error
                yield found

    return run
