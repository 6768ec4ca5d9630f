"""Stands in for `stratalog meta start` and `stratalog node start` where only starting and ending is looked at.

    pretended_part.py FOLDER meta|node start --listen H:P … [--id N]

Appends `NAME began` and `NAME ended` to FOLDER/story. FOLDER/NAME.does names something else to do: `fail` (ends with
code 3 before it is ready), `hang` (never ready), `deaf` (does not hear SIGTERM). What lies below FOLDER/v1 is answered
where it listens.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    name = f"node-{words[words.index('--id') + 1]}" if "--id" in words else "meta-1"
    does = (folder / f"{name}.does").read_text() if (folder / f"{name}.does").exists() else ""

    def note(what: str) -> None:
        with (folder / "story").open("a") as story:
            story.write(f"{name} {what}\n")

    def end(*_: object) -> None:
        note("ended")
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if does == "deaf" else end)
    note("began")
    if does == "fail":
        sys.exit("stratalog: cannot start: the moon is full")  # on standard error, code 1
    if (folder / "v1").exists() and name == "meta-1":
        host, _, port = words[words.index("--listen") + 1].rpartition(":")
        answers = HTTPServer((host, int(port)), partial(SimpleHTTPRequestHandler, directory=str(folder)))
        threading.Thread(target=answers.serve_forever, daemon=True).start()
    if does != "hang":
        sys.stdout.write("stratalog ready: as it were\n")
        sys.stdout.flush()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
