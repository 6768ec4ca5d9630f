"""What the process itself costs: memory, CPU, open files, threads. Read from the kernel when asked."""

from __future__ import annotations

import os
import resource
import threading

from stratalog.telemetry.metrics import MetricRegistry

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory in use now; where /proc is missing, the most there ever was."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1


def add_process_metrics(registry: MetricRegistry) -> None:
    registry.register("stratalog_process_resident_bytes", "gauge", "Memory of the process.", resident_bytes)
    registry.register("stratalog_process_cpu_seconds_total", "counter", "CPU time the process has used.", cpu_seconds)
    registry.register("stratalog_process_open_files", "gauge", "Open file descriptors.", open_files)
    registry.register("stratalog_process_threads", "gauge", "Python threads.", threading.active_count)
