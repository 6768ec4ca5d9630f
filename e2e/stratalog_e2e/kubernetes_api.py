"""The Kubernetes that is tested on, asked by kubectl: what it refuses is an error with question and answer."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

Object = dict[str, Any]
T = TypeVar("T")
_STEP_S = 0.5


class Refused(AssertionError):
    """kubectl ended with an error."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *words: str, given: str | None = None, timeout: float = 120) -> str:
        """kubectl WORDS. Raises: Refused."""
        done = subprocess.run(
            ["kubectl", *words],
            input=given,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise Refused(f"kubectl {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """None when there is none."""
        place = ("-n", namespace) if namespace else ()
        text = self.run("get", kind, name, *place, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Of the namespace; of all of them, or of a kind that is in none, without."""
        place = ("-n", namespace) if namespace else ("-A",)
        chosen = ("-l", selector) if selector else ()
        return list(json.loads(self.run("get", kind, *place, *chosen, "-o", "json"))["items"])

    def apply(self, *objects: Mapping[str, Any], namespace: str | None = None) -> None:
        """As a user does: server-side, by a manager of its own."""
        place = ("-n", namespace) if namespace else ()
        text = yaml.safe_dump_all([dict(one) for one in objects])
        self.run("apply", "--server-side", "--field-manager=a-user", "--force-conflicts", *place, "-f", "-", given=text)

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> None:
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    def delete(self, kind: str, name: str, namespace: str | None = None, *more: str, timeout: float = 180) -> None:
        """Returns when it is gone."""
        place = ("-n", namespace) if namespace else ()
        self.run(
            "delete",
            kind,
            name,
            *place,
            "--ignore-not-found",
            f"--timeout={int(timeout)}s",
            *more,
            timeout=timeout + 30,
        )

    def scale(self, kind: str, name: str, namespace: str, replicas: int) -> None:
        self.run("scale", f"{kind}/{name}", "-n", namespace, f"--replicas={replicas}")

    def exec(self, pod: str, namespace: str, *command: str, timeout: float = 120) -> str:
        return self.run("exec", pod, "-n", namespace, "--", *command, timeout=timeout)


def condition(found: Mapping[str, Any] | None, kind: str) -> Object:
    """Of an object; one of no status when there is none yet."""
    for one in (found or {}).get("status", {}).get("conditions", ()):
        if one["type"] == kind:
            return dict(one)
    return {"type": kind, "status": "", "reason": "", "message": ""}


def until(read: Callable[[], T], wanted: Callable[[T], object], limit_s: float, what: str) -> T:
    """The first value read that is as wanted. Raises AssertionError with what was seen last."""
    deadline = time.monotonic() + limit_s
    seen: T | None = None
    while True:
        problem: object = None
        try:
            seen = read()
            if wanted(seen):
                return seen
        except Refused as refusal:  # a server that is away for a moment
            problem = refusal
        if time.monotonic() > deadline:
            shown = problem or (json.dumps(seen, indent=1, default=str)[-6000:] if seen is not None else "nothing")
            raise AssertionError(f"{what}: not within {limit_s:.0f} s; last seen:\n{shown}")
        time.sleep(_STEP_S)


def documents(path: Path) -> Iterator[Object]:
    """The objects of a YAML file."""
    yield from (one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one)
