"""PostgreSQL as a target: the records of a range and the shard's offset are written in one transaction.

So a kill, a lost answer to COMMIT or a second job leaves the range stored whole or not at all, and the offset tells
which. The row of the shard's offset is locked first: two jobs store one after the other, and the second finds the
offset moved. The primary key (shard, offset) of the table proves it: no record can be there twice. PostgreSQL 12 or
later. `psycopg` is imported when a target is opened.

Beside the table, in its schema: `stratalog_sinks` (whose records a table holds), `stratalog_sink_progress` (where each
shard is read next), `stratalog_sink_lacks` (offsets that the table does not have, and why).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from stratalog.model.errors import Conflict, Forbidden, InvalidRequest, StratalogError, Unavailable
from stratalog_pipeline.cold.progress import Gap
from stratalog_pipeline.jobs.sinks.postgres_rows import COLUMNS, HEAD, TAIL, encode_rows
from stratalog_pipeline.jobs.sinks.target import (
    CONNECT_S,
    DELETED,
    PASSWORD_VARIABLE,
    REQUEST_S,
    Lack,
    ReadTables,
    ShardRange,
    SinkFacts,
    Stored,
    TargetAddress,
    TargetState,
    check_facts,
    out_of_order,
)

_URL: Final = "--url of PostgreSQL is postgresql://HOST[:PORT]/DATABASE"
_MOST_NAME_BYTES: Final = 63
_LOCK: Final = 0x5354_5241_5441_4C4F
"""Of the advisory lock that jobs hold while they make tables: CREATE TABLE IF NOT EXISTS can fail beside another."""
_BOOK_NAMES: Final = {
    "sinks": "stratalog_sinks",
    "progress": "stratalog_sink_progress",
    "lacks": "stratalog_sink_lacks",
}
_LOCAL: Final = {
    "lock_timeout": "60s",
    "idle_in_transaction_session_timeout": f"{REQUEST_S}s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Of each transaction: the server ends one whose job's machine is gone, and with it the lock on the shard's row."""
_TABLE: Final = """CREATE TABLE IF NOT EXISTS {table} (topic text NOT NULL, shard integer NOT NULL,
    "offset" bigint NOT NULL, "time" timestamptz, key bytea, value bytea, headers jsonb NOT NULL,
    PRIMARY KEY (shard, "offset"))"""
_BOOKS: Final = (
    """CREATE TABLE IF NOT EXISTS {sinks} (name text PRIMARY KEY, cluster_id text NOT NULL, topic text NOT NULL,
    topic_id uuid NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS {progress} (name text NOT NULL, shard integer NOT NULL,
    next_offset bigint NOT NULL, PRIMARY KEY (name, shard))""",
    """CREATE TABLE IF NOT EXISTS {lacks} (name text NOT NULL, shard integer NOT NULL, from_offset bigint NOT NULL,
    to_offset bigint NOT NULL, why text NOT NULL, PRIMARY KEY (name, shard, from_offset, to_offset))""",
)


def connection_settings(address: TargetAddress) -> dict[str, Any]:
    """Of libpq. The server's certificate is verified, unless the URL names another `sslmode`.

    Raises: InvalidRequest for a URL that is none, or that holds a password."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    if not address.url.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest(_URL)
    try:
        found: dict[str, Any] = dict(conninfo_to_dict(address.url))
    except Error:
        raise InvalidRequest(f"{_URL}, with odd characters as %XX") from None
    if any("password" in key for key in found):
        raise InvalidRequest(
            "--url holds a password, and every user of this machine sees a command line: give --password-file FILE, or "
            f"set {PASSWORD_VARIABLE}"
        )
    found.setdefault("sslmode", "verify-full")
    if address.ca_file:
        found["sslrootcert"] = address.ca_file
    elif found["sslmode"] in ("verify-full", "verify-ca"):
        found.setdefault("sslrootcert", "system")
    if address.user:
        found["user"] = address.user
    password = address.password()
    if password:
        found["password"] = password
    return found | {
        "connect_timeout": CONNECT_S,
        "application_name": "stratalog sink",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "client_encoding": "UTF8",
        "tcp_user_timeout": REQUEST_S * 1_000,
    }


class PostgresTarget:
    def __init__(self, address: TargetAddress) -> None:
        self._settings = connection_settings(address)
        schema, _, self._name = address.name.rpartition(".")
        self._schema = schema
        for one in (schema, self._name):
            if len(one.encode()) > _MOST_NAME_BYTES:
                raise InvalidRequest(f"PostgreSQL cuts names behind {_MOST_NAME_BYTES} bytes: give --table NAME")
        if self._name in _BOOK_NAMES.values():
            raise InvalidRequest(f"--table {self._name} is where sinks keep their progress: name another")
        self._connection: Any = None

    def __enter__(self) -> PostgresTarget:
        import psycopg

        with _errors():
            self._connection = psycopg.connect(**self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # What is there --------------------------------------------------------------------------------------------------
    def read(self, facts: SinkFacts) -> TargetState | None:
        with self._transaction():
            return self._state(facts) if self._exists("stratalog_sinks") else None

    def prepare(self, facts: SinkFacts, begins: Mapping[int, int]) -> TargetState:
        with self._transaction():
            self._execute("SELECT pg_advisory_xact_lock(%s)", _LOCK)
            if not self._exists("stratalog_sink_lacks"):
                for book in _BOOKS:
                    self._execute(book)
            state = self._state(facts)
            if state is not None:
                return state
            if not self._exists(self._name):
                self._execute(_TABLE)
            elif self._rows("SELECT 1 FROM {table} LIMIT 1"):
                raise Conflict(f"{self._source} has rows, and no sink wrote them: name another --table, or empty it")
            values = (self._name, facts.cluster_id, facts.topic, facts.topic_id)
            self._execute("INSERT INTO {sinks} VALUES (%s, %s, %s, %s)", *values)
            for shard, offset in begins.items():
                self._execute("INSERT INTO {progress} VALUES (%s, %s, %s)", self._name, shard, offset)
            return TargetState(dict(begins))

    def _state(self, facts: SinkFacts) -> TargetState | None:
        if not self._check(facts):
            return None
        progress = self._rows("SELECT shard, next_offset FROM {progress} WHERE name = %s", self._name)
        lacks = self._rows(
            "SELECT shard, from_offset, to_offset, why FROM {lacks} WHERE name = %s ORDER BY 1, 2", self._name
        )
        return TargetState(dict(progress), [Lack(*one) for one in lacks])

    def _check(self, facts: SinkFacts) -> bool:
        """Whether the table is this topic's; False: no sink wrote to it yet. Raises: Conflict."""
        found = self._rows("SELECT cluster_id, topic, topic_id FROM {sinks} WHERE name = %s", self._name)
        if not found:
            return False
        check_facts(SinkFacts(*found[0]), facts, self._source)
        if not self._exists(self._name):
            raise Conflict(
                f"{self._source} was dropped, and stratalog_sinks still has its progress: name another --table, or "
                f"delete the rows of {self._name!r} from stratalog_sinks, stratalog_sink_progress and "
                "stratalog_sink_lacks to store everything again"
            )
        return True

    # Changes --------------------------------------------------------------------------------------------------------
    def accept(self, facts: SinkFacts, gaps: Sequence[Gap]) -> None:
        with self._transaction():
            for gap in gaps:
                next_offset = self._lock(facts, gap.shard)
                if next_offset >= gap.to_offset:
                    continue
                self._note_lack(gap.shard, next_offset, gap.to_offset, DELETED)
                self._move(gap.shard, gap.to_offset)

    def store(self, facts: SinkFacts, wanted: ShardRange, read: ReadTables) -> Stored:
        stored = Stored()
        with self._transaction():
            next_offset = self._lock(facts, wanted.shard)
            if next_offset >= wanted.to_offset:
                return Stored(was_there=True)
            if next_offset < wanted.from_offset:
                raise out_of_order(wanted, next_offset, self._source)
            columns = ", ".join(f'"{name}"' for name in COLUMNS)
            with self._copying("COPY {table} (" + columns + ") FROM STDIN WITH (FORMAT binary)") as copy:
                copy.write(HEAD)
                for table in read(next_offset, stored.unread):
                    stored.records += table.num_rows
                    with self._patience():
                        copy.write(encode_rows(table))
                copy.write(TAIL)
            for batch in stored.unread:
                self._note_lack(wanted.shard, batch.base_offset, batch.end_offset, batch.why)
            self._move(wanted.shard, wanted.to_offset)
        return stored

    def _lock(self, facts: SinkFacts, shard: int) -> int:
        """Where the shard is read next. No other job changes it until the transaction ends."""
        if not self._check(facts):
            raise Conflict(f"the rows of {self._source} in stratalog_sinks were deleted meanwhile: run the job again")
        self._execute("INSERT INTO {progress} VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", self._name, shard)
        statement = "SELECT next_offset FROM {progress} WHERE name = %s AND shard = %s FOR UPDATE"
        return int(self._rows(statement, self._name, shard)[0][0])

    def _move(self, shard: int, next_offset: int) -> None:
        statement = "UPDATE {progress} SET next_offset = %s WHERE name = %s AND shard = %s"
        self._execute(statement, next_offset, self._name, shard)

    def _note_lack(self, shard: int, from_offset: int, to_offset: int, why: str) -> None:
        values = (self._name, shard, from_offset, to_offset, why.replace("\0", "\N{REPLACEMENT CHARACTER}"))
        self._execute("INSERT INTO {lacks} VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", *values)

    # The connection -------------------------------------------------------------------------------------------------
    @property
    def _source(self) -> str:
        return f"table {self._schema}.{self._name}" if self._schema else f"table {self._name}"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Committed at the end, or rolled back. If the answer to COMMIT is lost, the progress says what came of it."""
        with _errors():
            try:
                for name, value in _LOCAL.items():
                    self._execute(f"SET LOCAL {name} = '{value}'")
                yield
            except BaseException:
                with suppress(Exception), self._patience():
                    self._connection.rollback()
                raise
            with self._patience():
                self._connection.commit()

    @contextmanager
    def _copying(self, statement: str) -> Iterator[Any]:
        """A COPY, of which the caller writes the bytes."""
        with self._connection.cursor() as cursor:
            copying = cursor.copy(self._sql(statement))
            with self._patience():
                copy = copying.__enter__()
            try:
                yield copy
            except BaseException as error:
                with suppress(Exception), self._patience():
                    copying.__exit__(type(error), error, error.__traceback__)
                raise
            with self._patience():
                copying.__exit__(None, None, None)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """A server that is silent for REQUEST_S is given up: libpq itself would wait for an answer forever."""
        watch = threading.Timer(REQUEST_S, self._cut)
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _cut(self) -> None:
        with suppress(Exception), socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)

    def _execute(self, statement: str, *values: Any) -> Any:
        with self._patience():
            return self._connection.execute(self._sql(statement), values or None)

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._execute(statement, *values).fetchall()
        return found

    def _exists(self, table: str) -> bool:
        return bool(self._rows("SELECT to_regclass(%s) IS NOT NULL", self._identifier(table).as_string(None))[0][0])

    def _sql(self, statement: str) -> Any:
        from psycopg import sql

        return sql.SQL(statement).format(
            table=self._identifier(self._name), **{key: self._identifier(name) for key, name in _BOOK_NAMES.items()}
        )

    def _identifier(self, table: str) -> Any:
        from psycopg import sql

        return sql.Identifier(self._schema, table) if self._schema else sql.Identifier(table)


@contextmanager
def _errors() -> Iterator[None]:
    """By what the caller can do about them."""
    import psycopg

    try:
        yield
    except StratalogError:
        raise
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(f"PostgreSQL: {_line(error)}: grant it to the user of --url, or name another") from error
    except psycopg.errors.UniqueViolation as error:
        raise Conflict(
            f"PostgreSQL: {_line(error)}: something else wrote to the table. Its rows are more than its progress says"
        ) from error
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        raise Unavailable(f"PostgreSQL: {_line(error)}") from error
    except psycopg.Error as error:
        raise InvalidRequest(f"PostgreSQL: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
