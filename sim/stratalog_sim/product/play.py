"""Plays seeds of the worlds in which the product's own processes run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import Final

from stratalog_sim.broken import Broken
from stratalog_sim.product.faults import cause_faults
from stratalog_sim.product.leaders.failovers import Failovers
from stratalog_sim.product.leaders.handovers import HandOvers
from stratalog_sim.product.leaders.hanging import HangingDisks
from stratalog_sim.product.leaders.late_news import KINDS, LateNews
from stratalog_sim.product.leaving import LeavingNodes, copies_of
from stratalog_sim.product.rights.changing import ChangingRights
from stratalog_sim.product.uploads.direct import DirectTopics
from stratalog_sim.product.uploads.uploading import Uploading
from stratalog_sim.product.world import ProductWorld, Shape

_TELL_EVERY_S = 10.0


DIRECT: Final = Shape(is_quorum=False, has_bucket=True, has_groups=False, direct=True)


def shape_of(seed: int) -> Shape:
    """Of twenty seeds, four have a single node; on three nodes five have two copies of each segment, nine three, one a
    single one, and one (in which nodes come and go) one or two. In one of twenty disks hang, in two directories are
    damaged, in one rights change, in two leaders fail over, in two they hear too late what others did, in two segments
    move to the bucket, in one its topic is Direct, in one shards move between leaders, and in one nodes come and go."""
    match seed % 20:
        case 9:
            return leaving_shape_of(seed)
        case 12:
            return Shape(hangs=True)
        case 3:
            return Shape(directories=True, seconds=6.0)
        case 8:
            return Shape(replicas=2, is_quorum=False, directories=True, seconds=6.0)
        case 13 | 18:
            return Shape(fails_over=True)
        case 17:
            return Shape(replicas=1, hands_over=True)
        case 14 | 19:
            return Shape(late_news=KINDS)
        case 2:
            return Shape(rights=True)
        case 7:
            return Shape(uploads=True)
        case 16:
            return Shape(replicas=2, uploads=True)
        case 6:
            return DIRECT
    match seed % 5:
        case 0:
            return Shape(nodes=1, replicas=1)
        case 1:
            return Shape(nodes=3, replicas=2)
        case _:
            return Shape()


def leaving_shape_of(seed: int) -> Shape:
    return Shape(nodes=3, replicas=copies_of(seed), spares=1, seconds=(3.0, 4.0, 6.0)[seed % 3])


def world_of(seed: int, shape: Shape) -> ProductWorld:
    world = ProductWorld(seed, shape)
    if shape.hangs:
        world.cause_faults = lambda begun: HangingDisks(begun).run()
    elif shape.fails_over:
        world.cause_faults = lambda begun: Failovers(begun).run()
    elif shape.hands_over:
        hand_overs = HandOvers(world)
        world.cause_faults = lambda _: hand_overs.run()
    elif shape.late_news:
        world.cause_faults = lambda begun: LateNews(begun).run()
    elif shape.uploads:
        uploading = Uploading(world)
        world.cause_faults = lambda _: uploading.run()
    elif shape.direct:
        direct = DirectTopics(world)
        world.cause_faults = lambda _: direct.run()
    elif shape.rights:
        changing_rights = ChangingRights(world)
        world.cause_faults = lambda _: changing_rights.run()
    elif shape.spares:
        leaving = LeavingNodes(world)
        world.cause_faults = lambda _: leaving.run()
    else:
        world.cause_faults = cause_faults
    return world


def play_seeds(seeds: Sequence[int], *, is_told: bool, is_leaving: bool = False) -> int:
    """Until one breaks a promise; its history is printed. Returns the exit status."""
    begun, steps, checks = time.perf_counter(), 0, 0
    last_told = begun
    wanted = "--leaving " if is_leaving else ""
    for played, seed in enumerate(seeds):
        if time.perf_counter() - last_told > _TELL_EVERY_S:
            last_told = time.perf_counter()
            print(f"{played} of {len(seeds)} seeds, {steps} steps, {last_told - begun:.0f} s", flush=True)
        world = world_of(seed, (leaving_shape_of if is_leaving else shape_of)(seed))
        try:
            world.play()
        except AssertionError as failure:
            print("\n".join(world.history()))
            if not isinstance(failure, Broken):
                traceback.print_exc()
            print(f'seed {seed} of {world.shape}: {failure}\nagain: make sim ARGS="{wanted}--seed {seed}"')
            return 1
        steps += world.loop.steps
        checks += world.truth.checks
        if is_told:
            print("\n".join(world.history()))
    spent = time.perf_counter() - begun
    print(f"{len(seeds)} seeds, {steps} steps, {checks} checks, {spent:.1f} s: {steps / spent:.0f} steps/s; all held")
    return 0
