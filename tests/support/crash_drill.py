"""The crash drill: clients write, the node is killed at random moments, and after each death everything is counted.

One `Drill` is one node with its bucket, its clients and their ledger. `round` lets it work for a random while, kills it
(often again while it starts), starts it, and compares what can be read with what was acknowledged; `finish` stops the
clients, waits for the uploads and the sweep, reads everything and has `verify` and `doctor` look at both tiers.
Everything random comes from the seed, the scheduling of the machine excepted; it is printed for each round.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.history import Log, Outcome, Place, Seen, anomalies, differences
from support.ledger import (
    Committer,
    IdempotentSender,
    Ledger,
    PlainSender,
    TailReader,
    Worker,
    committed_offsets,
    create_topics,
    read_logs,
)
from support.node_process import NodeFailed, NodeProcess
from support.raw_client import RawClient
from support.record_writers import with_writers
from support.waiting import eventually_sync

SETTINGS: dict[str, Any] = {
    # Everything small and soon, so that a round of a second sees every phase of a segment's life many times.
    "log.segment.bytes": 16_384,
    "log.roll.ms": 900,
    "log.retention.ms": -1,
    "log.local.retention.ms": 150,
    "log.retention.check.interval.ms": 60,
    "flush.interval.ms": 50,
    "disk.reserve.bytes": 0,
    "remote.upload.chunk.bytes": 6_144,
    "remote.upload.bundle.bytes": 32_768,
    "remote.upload.max.inflight.bytes": 262_144,
    "remote.upload.interval.ms": 50,
    "remote.upload.timeout.ms": 1_000,
    "remote.delete.delay.ms": 300,
    "direct.commit.interval.ms": 30,
    "direct.commit.bytes": 12_288,
    "direct.max.unacknowledged.bytes": 131_072,
    "remote.orphan.grace.ms": 1_500,
    "remote.orphan.sweep.interval.ms": 400,
    "remote.bundle.max.age.ms": 1_500,
    "remote.read.cache.bytes": 1 << 20,
    "remote.read.window.min.bytes": 4_096,
    "remote.read.window.max.bytes": 65_536,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "ledger": (4, {}),
    "flushed": (4, {"flush.policy": "fsync"}),
    "kept": (1, {"local.retention.ms": "-1"}),
    "passing": (2, {"retention.bytes": "32768"}),
    "packed": (2, {"remote.compression": "zstd"}),
    "direct": (3, {"storage.policy": "Direct"}),
    "direct-packed": (2, {"storage.policy": "Direct", "remote.compression": "zstd", "retention.bytes": "65536"}),
}
PLACES: list[Place] = [(name, shard) for name, (shards, _) in TOPICS.items() for shard in range(shards)]

_WORKING_S = (0.1, 1.4)
_STARTING_S = (0.02, 0.9)
_UPLOADING_S = (0.0, 0.8)
_PATIENCE_S = 12.0
_WAITS_FOR_UPLOADS = 0.5
_KILLED_AGAIN = 0.4
_FULL_CHECK_EVERY = 50
_ENOUGH_ROUNDS = 15
"""So many rounds pass every phase; fewer may miss some."""
_SETTLED_S = 90.0
_PHASES = {
    "rolls": "stratalog_log_rolls_total",
    "seals": "stratalog_log_sealed_total",
    "flushes through the journal": "stratalog_flush_journal_groups_total",
    "parts committed": "stratalog_tier_parts_committed_total",
    "bundles put": "stratalog_tier_bundles_put_total",
    "segments complete": "stratalog_tier_segments_completed_total",
    "local copies freed": "stratalog_tier_local_copies_freed_total",
    "log starts moved": "stratalog_tier_log_starts_moved_total",
    "segments purged": "stratalog_tier_segments_purged_total",
    "bundles deleted": "stratalog_tier_bundles_deleted_total",
    "orphans swept": "stratalog_tier_objects_swept_total",
    "group commits": "stratalog_groups_commits_total",
}


class Drill:
    def __init__(
        self,
        folder: Path,
        bucket: str,
        seed: int,
        *,
        settings: Mapping[str, Any] | None = None,
        busy: bool = True,
        node_class: type[NodeProcess] = NodeProcess,
        after_each_kill: Callable[[Drill], None] = lambda _: None,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.node = node_class(folder / "data", bucket, SETTINGS | dict(settings or {}))
        self._after_each_kill = after_each_kill
        self._loses_tails = node_class is not NodeProcess
        self.ledger = Ledger()
        self.rounds = 0
        self.kills_in_start = 0
        self.census: Counter[str] = Counter()
        """How often each phase was seen to be passed, over all lives of the node."""
        self._busy = busy
        self._read_to: dict[Place, int] = {}
        self._known: dict[Place, dict[int, Seen]] = {place: {} for place in PLACES}
        self.workers: list[Worker] = []

    def begin(self) -> None:
        self.node.start()
        create_topics(self.node.bootstrap, TOPICS)
        common = (self.ledger, self.node.bootstrap, PLACES, self.seed)
        self.workers = [
            IdempotentSender("idempotent-1", *common),
            PlainSender("plain-1", *common),
            PlainSender("plain-2", *common),
            Committer("committer", *common[:2], PLACES[:5], self.seed, group="accountants"),
            TailReader("tail", *common),
        ]
        if self._busy:
            self.workers.insert(0, IdempotentSender("idempotent-2", *common))
        for worker in self.workers:
            worker.start()

    # A round ----------------------------------------------------------------------------------------------------
    def round(self) -> None:
        self.rounds += 1
        delay_s = self.chance.uniform(*_WORKING_S)
        time.sleep(delay_s)
        if self.chance.random() < _WAITS_FOR_UPLOADS:
            # A new life waits for the lease of the one before it: without this, many would never upload. On a bad day
            # of the store it may take longer than is worth waiting for.
            with contextlib.suppress(AssertionError):
                eventually_sync(paced(self._has_uploaded, 0.1), _PATIENCE_S)
            time.sleep(self.chance.uniform(*_UPLOADING_S))
        self._take_census()
        self._kill()
        killed_again = 0
        while self.chance.random() < _KILLED_AGAIN:
            killed_again += self._start_and_kill(self.chance.uniform(*_STARTING_S))
        self.kills_in_start += killed_again
        begin = time.monotonic()
        self.node.start()
        started_s = time.monotonic() - begin
        for worker in self.workers:
            worker.pause()  # or a slow check would have ever more to check
        self.check(from_the_start=self.rounds % _FULL_CHECK_EVERY == 0)
        for worker in self.workers:
            worker.resume()
        print(
            f"round {self.rounds} (seed {self.seed}): killed after {delay_s:.2f} s, {killed_again} times while it "
            f"started, up again in {started_s:.2f} s, checked in {time.monotonic() - begin - started_s:.2f} s, "
            f"{self.ledger.count(Outcome.OK)} acknowledged"
        )

    def _has_uploaded(self) -> bool:
        return self.node.metrics()["stratalog_tier_parts_committed_total"] > 0

    def _take_census(self) -> None:
        metrics = self.node.metrics()
        self.census.update({phase: int(metrics[name]) for phase, name in _PHASES.items()})

    def _start_and_kill(self, after_s: float) -> int:
        """Kill it in the middle of its start, or just after it. Returns: whether it was not ready yet."""
        timer = threading.Timer(after_s, self.node.kill)
        timer.start()
        try:
            self.node.start()
        except NodeFailed as failure:
            assert "code -9" in str(failure), failure
            was_starting = 1
        else:
            was_starting = 0
        finally:
            timer.join()
        self._kill()
        return was_starting

    def _kill(self) -> None:
        self.node.kill()
        self._after_each_kill(self)

    # Judging ----------------------------------------------------------------------------------------------------
    def check(self, *, from_the_start: bool) -> None:
        """Read what is new (or all), and compare with the ledger. Raises: AssertionError with every anomaly."""
        due = {send.value for send in self.ledger.copy(with_archive=from_the_start) if send.outcome is Outcome.OK}
        commits_before = self.ledger.commits()
        with RawClient(self.node.bootstrap, timeout=30.0) as client:
            logs = read_logs(client, PLACES, None if from_the_start else self._read_to)
            self._check_commits(client, commits_before)
        self._judge(logs, due, with_archive=from_the_start)
        self.ledger.archive(self._read_to)

    def _judge(self, logs: dict[Place, Log], due: set[bytes], *, with_archive: bool = True) -> None:
        found = []
        for place, log in logs.items():
            known = self._known[place]
            found += differences(place, (known[s.offset] for s in log.records if s.offset in known), log.records)
            known.update({seen.offset: seen for seen in log.records})
            if log.records:
                self._read_to[place] = log.records[-1].offset + 1
        # What was acknowledged while we read may lie behind what we read: it is due in the next round.
        sent = [
            send if send.outcome is not Outcome.OK or send.value in due else replace(send, outcome=Outcome.INFO)
            for send in self.ledger.copy(with_archive=with_archive)
        ]
        found += anomalies(sent, logs)
        assert not found, self._verdict(list(with_writers(self.node.bootstrap, found)))
        assert not self.ledger.wrong_answers, self._verdict(self.ledger.wrong_answers)
        failed = [f"{worker.name}: {worker.failure!r}" for worker in self.workers if worker.failure is not None]
        assert not failed, self._verdict(failed)

    def _check_commits(self, client: RawClient, due: dict[tuple[str, Place], tuple[int, int]]) -> None:
        if not due:
            return
        group = next(iter(due))[0]
        found: dict[Place, int] = {}

        def is_loaded() -> bool:
            nonlocal found
            try:
                found = committed_offsets(client, group)
            except AssertionError:
                return False
            return True

        eventually_sync(is_loaded, 20)
        tried = self.ledger.commits()
        wrong = [
            f"group {group}, {place}: {found.get(place, -1)} is committed, {done} was acknowledged, "
            f"{tried[group, place][1]} was tried last"
            for (_, place), (done, _) in due.items()
            if not done <= found.get(place, -1) <= tried[group, place][1]
        ]
        assert not wrong, self._verdict(wrong)

    def _verdict(self, found: list[str]) -> str:
        shown = "\n".join(found[:30])
        return f"{len(found)} anomalies in round {self.rounds} (seed {self.seed}):\n{shown}"

    # The end ----------------------------------------------------------------------------------------------------
    def stop_clients(self) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join(90)
            assert not worker.is_alive(), f"{worker.name} does not end"

    def finish(self) -> None:
        """Raises: AssertionError for whatever is not as it should be at rest."""
        self.stop_clients()
        self.check(from_the_start=True)
        tail = next(worker for worker in self.workers if isinstance(worker, TailReader))
        found = [
            anomaly
            for place, seen in tail.seen.items()
            for anomaly in differences(place, self._known[place].values(), seen)
        ]
        assert not found, self._verdict([str(anomaly) for anomaly in found])
        self.node.restart()  # once in order; and a segment whose reading failed is held for a minute in one life
        self.settle()
        self._take_census()
        print(f"{self.rounds} rounds, {self.kills_in_start} more kills in starts; passed: {dict(self.census)}")
        if self.rounds >= _ENOUGH_ROUNDS:
            assert all(self.census[phase] for phase in _PHASES), self.census
        command("verify", "--admin", self.node.admin)
        with RawClient(self.node.bootstrap, timeout=30.0) as client:
            self._judge(read_logs(client, PLACES), {s.value for s in self.ledger.copy() if s.outcome is Outcome.OK})
        assert self.node.metrics()["stratalog_log_cold_reads_total"] > 0, (
            "the last reading was to go through the bucket"
        )
        self.node.stop()
        assert self.node.bucket is not None
        for examined in json.loads(
            command("doctor", str(self.node.data_dir), "--bucket", self.node.bucket, "-o", "json")
        ):
            # Hints are about the bucket's costs.
            # A power cut may leave a segment that does not follow: never acknowledged, kept for a human to look at.
            findings = [
                f
                for f in examined["findings"]
                if f["severity"] != "hint" and not (self._loses_tails and ".unconfirmed" in f["place"])
            ]
            assert not findings, findings
        command("doctor", self.node.bucket)

    def settle(self) -> None:
        """Until everything is uploaded, freed and swept, and nothing changes any more."""
        quiet = {
            "stratalog_tier_unsent_bytes": 0,
            "stratalog_tier_uploads_in_flight": 0,
            "stratalog_tier_segments_to_publish": 0,
            "stratalog_tier_held_segments": 0,
            "stratalog_tier_objects_unexplained": 0,
            "stratalog_tier_bundles_unexplained": 0,
            "stratalog_tier_is_forked": 0,
        }
        last: list[Any] = []
        unchanged = 0

        def is_settled() -> bool:
            nonlocal last, unchanged
            metrics = self.node.metrics()
            now = [
                int(metrics["stratalog_tier_sweeps_total"]),
                [
                    metrics[f"stratalog_tier_{name}_total"]
                    for name in (
                        "objects_swept",
                        "segments_purged",
                        "bundles_deleted",
                        "bundles_rewritten",
                        "segments_completed",
                        "local_copies_freed",
                        "parts_committed",
                    )
                ],
            ]
            is_quiet = all(metrics[name] == value for name, value in quiet.items())
            if not last or not is_quiet or now[1] != last[1]:
                last, unchanged = now, 0
            # Longer than every grace: what a sweep would still take, it has taken.
            return now[0] - last[0] >= 8

        try:
            eventually_sync(paced(is_settled, 0.2), _SETTLED_S)
        except AssertionError:
            metrics = self.node.metrics()
            shown = {name: value for name, value in metrics.items() if name.startswith("stratalog_tier")}
            raise AssertionError(f"not settled within {_SETTLED_S} s: {last} {shown}") from None


def paced(predicate: Callable[[], bool], pause_s: float) -> Callable[[], bool]:
    """A predicate that asks a process: not at every turn of the loop that waits for it."""

    def slowly() -> bool:
        answer = predicate()
        if not answer:
            time.sleep(pause_s)
        return answer

    return slowly


def command(*arguments: str) -> str:
    """Run `stratalog …`. Raises: AssertionError with what it printed when it finds something."""
    executable = str(Path(sys.executable).with_name("stratalog"))
    done = subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"stratalog {' '.join(arguments)}: code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
