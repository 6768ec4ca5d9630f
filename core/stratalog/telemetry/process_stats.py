"""What the process itself costs, and what it is: memory, CPU, open files, threads, build.

Names are those of Prometheus's client libraries (`process_*`), so that any dashboard for processes shows this one.
Read from the kernel when asked.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import threading
import time
from typing import Final

from stratalog.telemetry.log_stream import LogStream
from stratalog.telemetry.metrics import MetricRegistry

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory in use now; where /proc is missing, the most there ever was."""
    try:
        return _memory_pages(1) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory_pages(column: int) -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[column])


def virtual_bytes() -> int:
    return _memory_pages(0) * _PAGE_BYTES


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1


def most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def started_seconds() -> float:
    """When the process began, in seconds since 1970."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def add_process_metrics(registry: MetricRegistry) -> None:
    started = started_seconds()
    add = registry.register
    add("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident_bytes)
    add("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", virtual_bytes)
    add("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu_seconds)
    add("process_open_fds", "gauge", "Number of open file descriptors.", open_files)
    add("process_max_fds", "gauge", "Maximum number of open file descriptors.", most_files)
    add("process_start_time_seconds", "gauge", "Start time of the process since 1970 in seconds.", lambda: started)
    add("process_threads", "gauge", "Python threads.", threading.active_count)
    lost = "Log lines that could not be written: the disk was full, or the reader was gone."
    add("stratalog_log_lines_lost_total", "counter", lost, lambda: LogStream.lost_lines)
    labels = {"version": importlib.metadata.version("stratalog"), "python": platform.python_version()}
    add("stratalog_build_info", "gauge", "1; the labels say what runs.", lambda: 1, constant=labels)
