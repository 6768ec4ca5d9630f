"""From the process's settings to the limits of the cold tier's writing side."""

from __future__ import annotations

from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.settings.process import ProcessSettings
from stratalog_node.tier.sweep.janitor import JanitorSchedule
from stratalog_node.tier.sweep.retention import RetentionSchedule

_MOST_DELETION_INTERVAL_MS = 30_000
_LEAST_DELETION_INTERVAL_MS = 100


def upload_limits(settings: ProcessSettings) -> UploadLimits:
    return UploadLimits(
        chunk_bytes=settings.remote_upload_chunk_bytes,
        bundle_bytes=settings.remote_upload_bundle_bytes,
        interval_ms=settings.remote_upload_interval_ms,
        in_flight_bytes=settings.remote_upload_max_inflight_bytes,
        put_timeout_ms=settings.remote_upload_timeout_ms,
    )


def retention_schedule(settings: ProcessSettings) -> RetentionSchedule:
    return RetentionSchedule(
        interval_ms=settings.log_retention_check_interval_ms,
        hard_limit_bytes=settings.local_hard_limit_bytes,
    )


def janitor_schedule(settings: ProcessSettings) -> JanitorSchedule:
    interval_ms = min(_MOST_DELETION_INTERVAL_MS, max(_LEAST_DELETION_INTERVAL_MS, settings.remote_delete_delay_ms))
    return JanitorSchedule(
        interval_ms=interval_ms,
        delete_delay_ms=settings.remote_delete_delay_ms,
        orphan_grace_ms=settings.remote_orphan_grace_ms,
        sweep_interval_ms=settings.remote_orphan_sweep_interval_ms,
        bundle_max_age_ms=settings.remote_bundle_max_age_ms,
    )
