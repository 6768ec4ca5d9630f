"""Reads an embedded meta store without changing it, also while a node has it open: for `stratalog doctor`.

Blocking. What the owner wrote after the store was opened here is not seen.
"""

from __future__ import annotations

from pathlib import Path

from rocksdict import AccessType, Options, Rdict, ReadOptions

from stratalog.machines.table.records import StoredRecord
from stratalog.model.errors import Corrupt, NotFound, StratalogError, Unavailable
from stratalog.stored import encoding


def read_stored_records(directory: Path) -> list[StoredRecord]:
    """Every record, the header first. Raises: NotFound when there is no store, Corrupt, Unavailable, InvalidRequest."""
    if not (directory / "CURRENT").is_file():
        raise NotFound(f"{directory}: no metadata store here")
    try:
        db = Rdict(str(directory), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:  # rocksdict raises bare Exception; the text is all it says
        raise _translated(error, directory) from error
    items: list[tuple[bytes, bytes]] = []
    try:
        cursor = db.iter(ReadOptions())
        cursor.seek_to_first()
        while cursor.valid():
            items.append((cursor.key(), cursor.value()))
            cursor.next()
        cursor.status()
    except Exception as error:
        raise _translated(error, directory) from error
    finally:
        db.close()
    return list(encoding.decode(items, str(directory)))


def _translated(error: Exception, directory: Path) -> StratalogError:
    if "Corruption" in str(error) or "checksum" in str(error).lower():
        return Corrupt(f"RocksDB refuses the metadata store: {error}", source=str(directory), position=0)
    return Unavailable(f"the metadata store in {directory} cannot be read: {error}")
