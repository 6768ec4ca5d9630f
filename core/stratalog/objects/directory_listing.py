"""The sorted listing of a directory store: pages of keys, in the byte order in which a bucket lists them.

Within a folder names are compared as keys go on: a folder counts with its slash (`a-b` < `a/b` < `a0`).
Cost: a page reads the folders on its way and holds their names; folders wholly before the page are not entered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stratalog.objects.keys import folder_of, is_segment
from stratalog.objects.store import ObjectInfo


def list_page(root: Path, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
    """At most `limit` objects whose key starts with `prefix` and is above `after`."""
    page: list[ObjectInfo] = []
    for info in _walk(root, folder_of(prefix), prefix, after):
        page.append(info)
        if len(page) == limit:
            break
    return page


def _walk(root: Path, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
    try:
        with os.scandir(root / folder) as entries:
            names = sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in entries
                if is_segment(entry.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        key = folder + name
        if name.endswith("/"):
            should_follow = key.startswith(prefix) or prefix.startswith(key)
            if should_follow and (key > after or after.startswith(key)):
                yield from _walk(root, key, prefix, after)
        elif key > after and key.startswith(prefix):
            try:
                status = os.stat(root / key, follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted while we walked
            yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)
