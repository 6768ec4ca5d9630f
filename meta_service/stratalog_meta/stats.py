"""What the meta service counts. The composition registers it: `registry.add("stratalog_meta", service.stats)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.metrics import counter, gauge, histogram


@dataclass(slots=True)
class LifeStats:
    """Of a service that keeps leases: `registry.add("stratalog_meta_lives", service.life_stats)`."""

    heartbeats: int = counter("Heartbeats of nodes heard.")
    lost: int = counter("Nodes whose lease ended.")
    silent_replicas: int = counter("Replicas that did not promise in time in a recovery.")
    refused: int = counter("Registrations refused because another life of the node holds its lease.")
    superseded: int = counter(
        "Heartbeats of lives that are over: a process was cut off, or two run on copies of one directory."
    )


@dataclass(slots=True)
class RepairStats:
    """Of a service that keeps leases: `registry.add("stratalog_meta_repairs", service.repair_stats)`."""

    copies_asked: int = counter("Replicas added that make a copy of a segment that has too few.")
    copies_dropped: int = counter("Replicas removed because others have proved as many copies as are asked for.")
    copies_waiting: int = gauge("Copies that are due and wait: for others to be made, or for nodes that can take them.")


@dataclass(slots=True)
class BackupStats:
    """Of a service with a bucket: `registry.add("stratalog_meta_snapshot", service.backup_stats)`."""

    puts: int = counter("Snapshots of the metadata put into the bucket.")
    failures: int = counter("Attempts to put a snapshot that failed.")
    is_failing: int = gauge("1 while no snapshot can be put: the bucket is away, or refuses.")
    is_older: int = gauge("1 when the bucket knows of newer metadata: changes are refused.")
    version: int = gauge("Version of the metadata in the newest snapshot.")
    timestamp_ms: int = gauge("When the newest snapshot was begun, since 1970.")
    size_bytes: int = gauge("Bytes of the newest snapshot.")


@dataclass(slots=True)
class RetirementStats:
    """Of a service that keeps leases: `registry.add("stratalog_meta_retirements", service.retirement_stats)`."""

    under_way: int = gauge("Nodes that leave, and are not released yet.")
    waiting: int = gauge("Nodes that leave and wait for a reason (`stratalog nodes status` names it).")
    remaining_bytes: int = gauge("Bytes that still need a node that leaves.")
    released: int = counter("Nodes released.")


@dataclass(slots=True)
class MetaStats:
    commands: int = counter("Commands performed, repetitions that changed nothing included.")
    refusals: int = counter("Commands refused.")
    reads: int = counter("Snapshots and single records read.")
    writes: int = counter("Synced writes to the store; each holds the commands that came meanwhile.")
    records: int = counter("Records in those writes.")
    store_failures: int = counter(
        "Writes that failed: from then on changes are refused until there is room, or until a restart."
    )
    store_refusals: int = counter("Writes that the store reported as done in part or not at all; it continues.")
    recoveries: int = counter("Segments taken from their leaders.")
    ranges_given_up: int = counter("Ranges of offsets that recoveries gave up, empty ones included.")
    copies_differing: int = counter("Copies that differed from the sealed ones, and were dropped.")
    changes: int = counter("Changes sent to watchers.")
    watches_lagged: int = counter("Watches that fell behind the history that is kept and had to take a snapshot.")
    version: int = gauge("Version of the metadata.")
    write_duration: Histogram = field(default_factory=Histogram, metadata=histogram("Time of one synced write."))
