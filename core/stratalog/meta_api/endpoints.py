"""Which instance of the meta service to ask: the one that was said to lead, else one after another.

Pure. The addresses it was made with are asked in turn; one that an instance named as the leader is asked until it
fails, even if it was not among them, for instances come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from stratalog.model.errors import InvalidRequest

MAX_HOPS: Final = 4
"""The most redirects that one attempt follows. More are a circle of instances that do not know the new leader yet."""


def parse_endpoints(text: str) -> tuple[str, ...]:
    """`http://HOST:PORT[,http://HOST:PORT...]`, or with `https://`. Raises InvalidRequest."""
    urls = tuple(part.strip().rstrip("/") for part in text.split(","))
    for url in urls:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.path
        except ValueError:
            is_url = False
        if not is_url:
            raise InvalidRequest(
                f"{url!r:.80} is not the address of a meta service: write http://HOST:PORT[,http://...], or https://"
            )
    if len(set(urls)) != len(urls):
        raise InvalidRequest(f"{text!r:.200} names an instance twice: name each once")
    return urls


class Endpoints:
    def __init__(self, urls: Sequence[str]) -> None:
        assert urls, "there is one to ask"
        self._urls = tuple(urls)
        self._at = 0
        self._leader: str | None = None

    @property
    def present(self) -> str:
        """The instance to ask next."""
        return self._leader if self._leader is not None else self._urls[self._at]

    @property
    def answered_last(self) -> str | None:
        """The instance that leads, as far as is known; None since it failed."""
        return self._leader

    def leads(self, url: str) -> None:
        """An instance has named the leader."""
        self._leader = url.rstrip("/")

    def answered(self, url: str) -> None:
        """It leads: only the leader answers."""
        if url != self._leader:
            self._leader = url

    def failed(self, url: str) -> None:
        """No answer came from there, or none that helps: the next one is asked. Others may have moved on meanwhile."""
        if url != self.present:
            return
        if self._leader is not None:
            self._at = self._urls.index(url) if url in self._urls else self._at - 1
            self._leader = None
        self._at = (self._at + 1) % len(self._urls)
