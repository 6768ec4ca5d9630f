"""What a node's metrics have been, sampled over its lives: for the test that each of them moves (F88)."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from types import TracebackType

from support.node_process import NodeProcess

_PERIOD_S = 0.01


class MetricHistory:
    """Reads the metrics page in a thread as long as it is entered. A counter counts from zero in each life."""

    def __init__(self) -> None:
        self.families: dict[str, str] = {}
        """Name -> type, of every family that was ever on a page."""
        self._values: dict[str, set[float]] = defaultdict(set)
        self._node: NodeProcess | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, node: NodeProcess) -> MetricHistory:
        self._node = node
        return self

    def __enter__(self) -> MetricHistory:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.sample()
        self._stopping.set()
        assert self._thread is not None
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            try:
                self.sample()
            except OSError:
                time.sleep(_PERIOD_S)  # the node is down between two lives

    def sample(self) -> dict[str, float]:
        """Reads the page once. Returns the sum over the series of each name on it."""
        assert self._node is not None
        sums: defaultdict[str, float] = defaultdict(float)
        for line in self._node.get("/metrics").splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.families.setdefault(name, kind)
            elif not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                if not math.isnan(float(value)):
                    self._values[name].add(float(value))
                    sums[name] += float(value)
        return sums

    def moved(self) -> set[str]:
        """Families that had two different values; a counter or a histogram that is above zero has moved."""
        return {name for name, kind in self.families.items() if self._has_moved(name, kind)}

    def _has_moved(self, name: str, kind: str) -> bool:
        if kind == "histogram":
            return any(value > 0 for value in self._values[f"{name}_count"])
        if kind == "counter":
            return any(value > 0 for value in self._values[name])
        return len(self._values[name]) > 1
