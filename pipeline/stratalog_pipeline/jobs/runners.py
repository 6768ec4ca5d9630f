"""How the pieces of a job are worked on: here, one after another, or by Spark, many at a time.

A piece is a picklable call that may be made any number of times with the same outcome, so a task that Spark repeats, or
runs twice, does no harm. Results come in no particular order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    def __call__(self, work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]: ...


def one_by_one(work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]:
    """In this process: for small jobs and for tests."""
    for piece in pieces:
        yield work(piece)


def on_spark(spark: Any) -> Runner:
    """In the tasks of a session, some rounds of all its cores at a time, so that progress can be told."""
    context = spark.sparkContext
    at_a_time = 4 * int(context.defaultParallelism)

    def run(work: Callable[[T], R], pieces: Sequence[T]) -> Iterator[R]:
        for first in range(0, len(pieces), at_a_time):
            some = pieces[first : first + at_a_time]
            yield from context.parallelize(some, len(some)).map(work).collect()

    return run
