"""Watches the pods of a namespace through the `kubernetes` client, from a thread, so that it misses no short state.

A watch that breaks is started again from a list, and assumes nothing about the time between.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import kubernetes.client
import kubernetes.config
import kubernetes.watch

from stratalog_e2e.kubernetes_api import Kubernetes

LABEL_PART = "stratalog.dev/part"
_WATCH_S = 30


@dataclass(frozen=True, slots=True)
class Sight:
    """A storage pod, as it was from then on."""

    at: float
    name: str
    uid: str
    is_ready: bool
    is_leaving: bool
    restarts: int
    is_gone: bool = False


class Observer:
    def __init__(self, kube: Kubernetes, namespace: str) -> None:
        self._namespace = namespace
        client = kubernetes.config.new_client_from_config(str(kube.kubeconfig))
        self._core = kubernetes.client.CoreV1Api(client)
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._sights: list[Sight] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"observer of {namespace}")
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    @property
    def sights(self) -> list[Sight]:
        with self._lock:
            return list(self._sights)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._watch()
            except Exception:  # the server is away, or the watch is too old: look again
                time.sleep(1)

    def _watch(self) -> None:
        listed = self._core.list_namespaced_pod(self._namespace, _request_timeout=30)
        there = set()
        for pod in listed.items:
            there.add(pod.metadata.uid)
            self._note(pod)
        for last in latest(self.sights).values():
            if last.uid not in there and not last.is_gone:
                self._add(Sight(time.time(), last.name, last.uid, False, True, last.restarts, is_gone=True))
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            self._core.list_namespaced_pod,
            self._namespace,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=_WATCH_S,
        ):
            self._note(event["object"], is_gone=event["type"] == "DELETED")
            if self._ending.is_set():
                watch.stop()

    def _note(self, pod: Any, *, is_gone: bool = False) -> None:
        labels = pod.metadata.labels or {}
        if labels.get(LABEL_PART) != "node":
            return
        conditions = pod.status.conditions or ()
        is_ready = any(one.type == "Ready" and one.status == "True" for one in conditions)
        restarts = sum(one.restart_count for one in pod.status.container_statuses or ())
        is_leaving = pod.metadata.deletion_timestamp is not None
        self._add(
            Sight(
                time.time(),
                pod.metadata.name,
                pod.metadata.uid,
                is_ready and not is_gone,
                is_leaving,
                restarts,
                is_gone,
            )
        )

    def _add(self, sight: Sight) -> None:
        with self._lock:
            self._sights.append(sight)

    def violations(self, *, restarts_are_expected: bool, outage_is_expected: bool) -> list[str]:
        """What must not have happened to storage pods, whatever the test was about."""
        sights = self.sights
        wrong = [] if outage_is_expected else more_than_one_away(sights)
        if not restarts_are_expected:
            wrong += restarted(sights)
        return wrong


def latest(sights: list[Sight]) -> dict[str, Sight]:
    """By UID."""
    return {one.uid: one for one in sights}


def more_than_one_away(sights: list[Sight]) -> list[str]:
    """At no moment are two away that were ready before and came back, or should: who left for good is not away."""
    last = latest(sights)
    names_there = {one.name for one in last.values() if not one.is_gone}
    was_ready: set[str] = set()
    away: set[str] = set()
    for sight in sights:
        if sight.is_ready:
            was_ready.add(sight.name)
            away.discard(sight.name)
        elif sight.name in was_ready and sight.name in names_there:
            away.add(sight.name)
            if len(away) > 1:
                return [f"{' and '.join(sorted(away))} were away at the same time"]
    return []


def restarted(sights: list[Sight]) -> list[str]:
    """Pods with a new UID under an old name, and containers that restarted after they had been ready. Pods of nodes
    that have left do not count: the process ends before its pod is stopped."""
    there = {one.name for one in latest(sights).values() if not one.is_gone and not one.is_leaving}
    sights = [one for one in sights if one.name in there]
    uids: dict[str, set[str]] = {}
    ready: set[str] = set()
    wrong = []
    for sight in sights:
        uids.setdefault(sight.name, set()).add(sight.uid)
        if sight.is_ready:
            ready.add(sight.uid)
    for name, found in uids.items():
        if len(found) > 1 and len(found & ready) > 1:
            wrong.append(f"{name} was replaced: {len(found)} pods had that name")
    for sight in latest(sights).values():
        if sight.restarts and sight.uid in ready:
            wrong.append(f"{sight.name} began again {sight.restarts} times")
    return wrong
