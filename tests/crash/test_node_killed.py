"""`kill -9` of a node at random moments of produce, roll, seal, upload, local delete, deletion and start: every
acknowledged record is there, once, in order, at its offset, in whichever tier; nothing unexplained is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.crash_drill import Drill
from support.fault_proxy import (
    BlackHole,
    CutBody,
    FaultProxy,
    HungAnswer,
    Latency,
    LostAnswer,
    Reset,
    Rule,
    ServerError,
    ShortBody,
    proxy_in_thread,
)
from support.s3_servers import NO_VERSITYGW, versitygw_binary, versitygw_server


@pytest.mark.fault("process-killed-produce-roll")
@pytest.mark.timeout(3600)
def test_a_killed_node_loses_nothing_and_doubles_nothing(tmp_path: Path, crash_rounds: int, crash_seed: int) -> None:
    drill = Drill(tmp_path, str(tmp_path / "bucket"), crash_seed)
    drill.begin()
    for _ in range(crash_rounds):
        drill.round()
    drill.finish()


def spoil(proxy: FaultProxy, chance: random.Random) -> None:
    """A bad day of the store, another one each time."""
    proxy.clear()
    faults = [
        Rule(Latency(0.0, jitter_s=0.05)),
        Rule(ServerError(), share=0.15),
        Rule(LostAnswer(), methods={"PUT", "POST", "DELETE"}, share=0.15),
        Rule(HungAnswer(), methods={"PUT"}, share=0.05),
        Rule(BlackHole(), methods={"PUT"}, share=0.05),
        Rule(BlackHole(), methods={"GET"}, share=0.005),
        Rule(CutBody(700), methods={"GET"}, share=0.1),
        Rule(ShortBody(), methods={"GET"}, share=0.1),
        Rule(Reset(), share=0.1),
    ]
    for rule in chance.sample(faults, k=6):
        proxy.add(rule)


@pytest.mark.fault("bucket-fails-once")
@pytest.mark.real_s3
@pytest.mark.timeout(3600)
def test_a_node_killed_while_its_bucket_fails_loses_nothing(tmp_path: Path, crash_rounds: int, crash_seed: int) -> None:
    """A real S3 server behind a proxy: 503s, lost answers, hanging requests, cut and short bodies; and it is killed."""
    if versitygw_binary() is None:
        pytest.skip(NO_VERSITYGW)
    with versitygw_server(tmp_path / "s3") as server, proxy_in_thread(server.port, seed=crash_seed) as proxy:
        drill = Drill(tmp_path, server.through(proxy.port).url(), crash_seed, busy=False)
        drill.begin()
        for _ in range(max(3, crash_rounds // 5)):
            spoil(proxy, drill.chance)
            drill.round()
        proxy.clear()
        drill.finish()
        print(f"faults met: {dict(proxy.seen.faults)}")
        assert len(proxy.seen.faults) >= 5
