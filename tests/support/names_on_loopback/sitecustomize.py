"""For a program that is started with this folder in PYTHONPATH: names of Services and of their pods (….svc.…) are
this machine, at whatever port they are asked STRATALOG_TEST_META_PORT. Nothing else of the program is changed.
"""

import os

import uvloop

_PORT = int(os.environ["STRATALOG_TEST_META_PORT"])
_asked = uvloop.Loop.getaddrinfo


async def _answered(loop, host, port, **more):  # type: ignore[no-untyped-def]
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and ".svc." in name:
        return await _asked(loop, "127.0.0.1", _PORT, **more)
    return await _asked(loop, host, port, **more)


uvloop.Loop.getaddrinfo = _answered
