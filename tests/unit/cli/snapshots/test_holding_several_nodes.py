"""`stratalog snapshot create` over several nodes: what it holds and lets go makes a cut, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from stratalog.admin_api.cuts import Confirmed, CutRequest, HoldRequest
from stratalog.model.errors import NotFound, Unavailable
from stratalog_cli.snapshots import snapshots
from support.held_nodes import TOPIC, HeldNode, HeldNodes, InDrawnOrder

SEEDS = range(400)


@dataclass
class Found:
    refuted: str | None = None
    is_refused: bool = False
    """In a world where nothing goes wrong any more."""
    was_void: bool = False
    """Some try, or all of them."""


def play(seed: int, patch: pytest.MonkeyPatch) -> Found:
    """A cut while much goes wrong, and one after that."""
    world, found = HeldNodes(seed), Found()
    tries = 0
    hold_once = snapshots._hold_once

    def counted(*asked: Any) -> Any:
        nonlocal tries
        tries += 1
        return hold_once(*asked)

    patch.setattr(snapshots, "_hold_once", counted)
    patch.setattr(snapshots, "ThreadPoolExecutor", InDrawnOrder(world))
    patch.setattr(snapshots, "_PAUSE_S", 0.0)
    nodes: Any = world
    for is_rough in (True, False):
        world.is_rough = is_rough
        try:
            cluster_id, _, ends = snapshots._hold(nodes, [TOPIC])
        except Unavailable as refused:
            assert "no consistent snapshot could be made" in str(refused)
            found.is_refused = not is_rough
            continue
        assert cluster_id == "cluster" and sorted(key.shard for key in ends) == [0, 1, 2, 3]
        for _ in range(50):
            world.goes_by()  # what is acknowledged from now on must not be in it, nor missing
        found.refuted = found.refuted or world.refuted(ends)
    found.was_void = tries > 2
    return found


@pytest.mark.fault("snapshot-taken-clients-write")
def test_a_cut_is_consistent_or_refused_whatever_happens_while_nodes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    voids = 0
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            found = play(seed, patch)
        assert found.refuted is None, f"seed {seed}: {found.refuted}"
        assert not found.is_refused, f"seed {seed}: refused, though all is well"
        voids += found.was_void
    assert 50 < voids < len(SEEDS), "in some worlds much went wrong, in others nothing"


def _held_for_a_moment(node: HeldNode, request: HoldRequest) -> Any:
    held = node.hold_cut(request)
    node.let_go()
    return held


def _was_held(node: HeldNode, request: CutRequest) -> bool:
    node.release_cut(request)
    return True


def _confirms(node: HeldNode, request: CutRequest) -> Confirmed:
    return Confirmed(node_id=node.node_id)


BUGS: dict[str, dict[str, Callable[..., Any]]] = {
    "each is let go before the next is held": {"_hold_one": _held_for_a_moment, "_release": lambda *_, **__: True},
    "whether it was held without a break is not asked": {"_release": _was_held},
    "whether it led is not asked": {"_confirm": _confirms},
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_that_is_seen(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            for name, wrong in BUGS[bug].items():
                patch.setattr(snapshots, name, wrong)
            found = play(seed, patch)
        if found.refuted is not None or found.is_refused:
            return
    raise AssertionError(f"{len(SEEDS)} seeds do not see: {bug}")


def test_who_was_deposed_and_does_not_know_yet_voids_nothing_where_it_leads_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = HeldNodes(1)
    world.is_rough = False
    leader, deposed = world.clients[:2]
    for log in world.logs:
        log.leader, log.epoch, log.taken_at_epoch = leader.node_id, 1, 1
    deposed.believes[0] = 0, len(world.logs[0].records) + 7
    monkeypatch.setattr(snapshots, "ThreadPoolExecutor", InDrawnOrder(world))
    clients: Any = world.clients
    _, _, ends = snapshots._hold_once(clients, [TOPIC])
    assert {(one.node_id, one.epoch) for one in ends.values()} == {(leader.node_id, 1)}
    assert world.refuted(ends) is None


def test_all_nodes_are_let_go_though_one_could_not_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    world = HeldNodes(1)
    world.is_rough = False
    monkeypatch.setattr(snapshots, "_PAUSE_S", 0.0)

    def never(_: HoldRequest) -> Any:
        raise Unavailable("not now")

    monkeypatch.setattr(world.clients[0], "hold_cut", never)
    nodes: Any = world
    with pytest.raises(Unavailable, match="in 5 tries: not now; try again"):
        snapshots._hold(nodes, [TOPIC])
    assert not [node for node in world.clients if node.is_held]
    assert all(isinstance(cut_id, UUID) for node in world.clients[1:] for cut_id in node.cuts)


class Restarted:
    """A node that was started again since it was held."""

    def confirm_cut(self, _: CutRequest) -> Confirmed:
        raise NotFound("it is not being made on this node")


class Continuing:
    def confirm_cut(self, _: CutRequest) -> Confirmed:
        return Confirmed(node_id=2)


def test_a_snapshot_needs_one_node_that_still_knows_its_cut() -> None:
    request, knows = CutRequest(cut_id=UUID(int=1)), Continuing()
    clients: Any = [Restarted(), knows, Restarted()]
    assert snapshots._with_new_metadata(clients, request) is knows
    with pytest.raises(Unavailable, match=r"no consistent snapshot could be made: it is not .*; try again"):
        snapshots._with_new_metadata(clients[::2], request)
