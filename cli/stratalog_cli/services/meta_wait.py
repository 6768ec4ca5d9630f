"""Waiting for the meta service at the start of a node: in a cluster that comes up, nodes are often there first.

A name that does not resolve yet, a connection that is refused and an instance that does not lead are waited for, and
said in the log now and then; whoever started the process ends it when that takes too long. What no time heals is
raised: other metadata, a token that is not taken.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from stratalog.model.errors import OutcomeUnknown, Unauthorized, Unavailable
from stratalog.telemetry.logs import logger

_PAUSE_S: Final = 0.5
_TELL_EVERY_S: Final = 10.0
_FIRST_WORDS_S: Final = 3.0

log = logger(__name__)


class Asked(Protocol):
    async def read_cluster_id(self) -> str: ...


async def until_answered(meta: Asked) -> None:
    """Raises: Unauthorized, Rejected."""
    clock = asyncio.get_running_loop()
    told_s: float | None = None

    def report(reason: str) -> None:
        nonlocal told_s
        if told_s is None or clock.time() - told_s >= _TELL_EVERY_S:
            told_s = clock.time()
            log.warning("waiting for the meta service", reason=reason)

    # A service that hangs lets one question last for all its attempts.
    first_words = clock.call_later(_FIRST_WORDS_S, report, f"no answer within {_FIRST_WORDS_S:g} s")
    try:
        while True:
            try:
                await meta.read_cluster_id()
            except Unauthorized:
                raise
            except (Unavailable, OutcomeUnknown) as error:
                report(str(error))
            else:
                if told_s is not None:
                    log.info("the meta service answers")
                return
            await asyncio.sleep(_PAUSE_S)
    finally:
        first_words.cancel()
