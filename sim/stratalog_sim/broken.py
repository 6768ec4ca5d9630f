"""The judge's verdict."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise was broken; `promise` is its short name."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
