"""What members of a cluster may do: a node acts as itself alone, and no other member or client acts as a node."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.machines.rights.members import (
    SENDERS,
    Senders,
    may_replicate,
    sees_tokens,
    why_not_command,
    why_not_credentials,
    why_not_dialled,
    why_not_node,
    why_not_of_cluster,
    why_not_own,
)
from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.machines.tiering.claims import holder_name
from stratalog.machines.tiering.upload_duty import SWEEP_LEASE_MS, SWEEPER
from stratalog.meta_api import wire
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.mount_commands import CloseVolume, OpenVolume, TakeMount
from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.members import Member, Part, member_among
from stratalog.model.metadata import Life, Lock, NodeInfo, life_name
from stratalog.model.rights import ANONYMOUS, USER, Principal

ONE, TWO = Member("prod", Part.NODE, 1), Member("prod", Part.NODE, 2)
META, OPERATOR = Member("prod", Part.META), Member("prod", Part.OPERATOR)
FOREIGN = Member("test", Part.NODE, 1)
EVERYONE = (None, ONE, TWO, META, OPERATOR)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("stratalog://prod/node/0", Member("prod", Part.NODE, 0)),
        ("stratalog://prod/node/2147483647", Member("prod", Part.NODE, 2**31 - 1)),
        ("stratalog://7c1f-a.B_2/meta", Member("7c1f-a.B_2", Part.META)),
        ("stratalog://prod/operator", OPERATOR),
    ],
)
def test_a_uri_names_a_member_and_a_member_is_written_as_its_uri(uri: str, expected: Member) -> None:
    assert member_among(["https://example.com/node/9", uri]) == expected
    assert str(expected) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "stratalog://prod/node/01",
        "stratalog://prod/node/2147483648",
        "stratalog://prod/node/-1",
        "stratalog://prod/node/1/",
        "stratalog://prod/node/1\n",
        "stratalog://prod/node/",
        "stratalog://prod/nodes/1",
        "stratalog://prod/meta/1",
        "stratalog://prod/user",
        "stratalog://prod",
        "stratalog:///node/1",
        "stratalog://prod/node/1?node/2",
        "stratalog://a@prod/node/1",
        "STRATALOG://prod/node/1",
        "stratalog://prod/NODE/1",
        "stratalog://prod/node/\u0661",
    ],
)
def test_a_uri_that_is_almost_a_members_is_refused_and_not_passed_over(uri: str) -> None:
    with pytest.raises(InvalidRequest, match="expected stratalog://CLUSTER/node/ID"):
        member_among([uri])


def test_a_certificate_with_two_members_is_none() -> None:
    with pytest.raises(InvalidRequest, match="2 members"):
        member_among(["stratalog://prod/node/1", "stratalog://prod/node/2"])


def test_a_certificate_without_such_a_uri_names_no_member() -> None:
    assert member_among([]) is None
    assert member_among(["https://prod/node/1", "spiffe://prod/node/1"]) is None


def test_members_are_principals_of_their_own_types() -> None:
    assert [one.principal for one in (ONE, META, OPERATOR)] == [
        Principal("Node", "1"),
        Principal("Meta", ""),
        Principal("Operator", ""),
    ]


# Own certificates -----------------------------------------------------------------------------------------------------
def test_a_process_uses_the_certificate_of_no_other_one() -> None:
    assert why_not_own(ONE, Part.NODE, 1) is None
    assert why_not_own(None, Part.NODE, 1) is None
    assert "needs stratalog://CLUSTER/node/2" in str(why_not_own(ONE, Part.NODE, 2))
    assert "names stratalog://prod/node/1" in str(why_not_own(ONE, Part.META))
    assert "stratalog://CLUSTER/node/1" in str(why_not_own(None, Part.NODE, 1, is_needed=True))


def test_who_dials_a_node_takes_that_node_alone() -> None:
    assert why_not_dialled(ONE, TWO, Part.NODE, 2) is None
    assert why_not_dialled(ONE, TWO, Part.NODE) is None
    assert why_not_dialled(ONE, META, Part.META) is None
    for shown, wanted in (
        (None, 2),
        (ONE, 2),
        (META, 2),
        (OPERATOR, 2),
        (Member("test", Part.NODE, 2), 2),
    ):
        assert "stratalog://prod/node/2 is expected there" in str(why_not_dialled(ONE, shown, Part.NODE, wanted))
    for shown in (None, TWO, OPERATOR, Member("test", Part.META)):
        assert "stratalog://prod/meta is expected there" in str(why_not_dialled(ONE, shown, Part.META))


def test_members_of_another_cluster_are_none_of_this_one() -> None:
    assert why_not_of_cluster(ONE, TWO) is None
    assert "'test'" in str(why_not_of_cluster(ONE, FOREIGN))


# The meta service ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shown", EVERYONE)
def test_only_the_node_itself_acts_as_a_node(shown: Member | None) -> None:
    assert (why_not_node(shown, 1) is None) == (shown == ONE)
    assert (why_not_command(shown, commands.RegisterNode(NodeInfo(1, "disk", "host", 9092))) is None) == (shown == ONE)
    assert (why_not_command(shown, TakeMount("node-9", 1, caller=Life(1, 1))) is None) == (shown == ONE)


def commands_of_nodes() -> list[type[commands.NodeCommand[object]]]:
    return [kind for kind in commands.COMMANDS if issubclass(kind, commands.NodeCommand)]


def made(kind: type[commands.Command[object]], caller: Life | None = None) -> commands.Command[object]:
    """A command about node 1 and the locks that its caller holds, or the one of jobs."""
    lock = (
        Lock(COMPACTION_LOCK, "job-1", 1, 0)
        if caller is None
        else Lock(f"tier/{caller.node_id}", life_name(caller.node_id, caller.epoch), 1, 0)
    )
    if kind is commands.RegisterNode:
        return commands.RegisterNode(NodeInfo(1, "disk", "host", 9092))
    given = {"node_id": 1, "lock": lock, "name": lock.name, "holder": lock.holder, "ttl_ms": 1_000}
    fields = [name for name in inspect.signature(kind).parameters if name != "caller"]
    assert issubclass(kind, commands.NodeCommand)
    return kind(**{name: given.get(name) for name in fields}, caller=caller)


@pytest.mark.parametrize("kind", commands_of_nodes(), ids=lambda kind: kind.__name__)
def test_no_command_is_taken_in_the_name_of_another_node(kind: type[commands.NodeCommand[object]]) -> None:
    """The fields that decide are the same in all of them: whatever else a command says counts for nothing here."""
    fields = [name for name in inspect.signature(kind).parameters if name != "caller"]
    command = kind(**{name: 2 if name == "node_id" else None for name in fields}, caller=Life(2, 1))
    for shown in (None, ONE, META, OPERATOR):
        assert why_not_command(shown, command) is not None


def test_each_command_that_is_asked_for_over_the_network_has_its_senders() -> None:
    """A new command is refused to everyone until it has a class."""
    assert set(SENDERS) == set(commands.COMMANDS) == {known.kind for known in wire.COMMAND_WIRES.values()}
    for shown in EVERYONE:
        assert why_not_command(shown, commands.NoteLives()) is not None


def test_the_page_says_of_each_command_who_asks_for_it() -> None:
    text = Path("docs/security-spec.md").read_text()
    table = text.split("| commands of the meta service | are asked for by |\n|---|---|\n")[1].split("\n\n")[0]
    told = {}
    for row in table.splitlines():
        _, names, who, _ = row.split("|")
        told.update({name: who.strip() for name in re.findall(r"`([a-z-]+)`", names)})
    assert told == {known.path.rpartition("/")[2]: SENDERS[known.kind] for known in wire.COMMAND_WIRES.values()}


@pytest.mark.parametrize("kind", commands.COMMANDS, ids=lambda kind: kind.__name__)
def test_a_command_is_taken_from_its_senders_alone(kind: type[commands.Command[object]]) -> None:
    """Each list: no certificate, node 1, node 2, the meta service, the operator."""
    senders = SENDERS[kind]
    own_node, refused = [False, True, False, False, False], [False] * 5
    people = [True, False, False, False, True]
    without_life = {
        Senders.ITSELF: own_node,
        Senders.NODES: refused,
        Senders.NODES_AND_PEOPLE: people,
        Senders.PEOPLE: people,
        Senders.HOLDERS: people,
    }
    assert [why_not_command(shown, made(kind)) is None for shown in EVERYONE] == without_life[senders]
    in_a_life = refused if senders is Senders.PEOPLE else own_node
    assert [why_not_command(shown, made(kind, Life(1, 5))) is None for shown in EVERYONE] == in_a_life


@pytest.mark.parametrize("kind", [OpenVolume, CloseVolume, commands.ForgetLocal])
def test_a_life_of_another_node_beside_the_own_name_is_refused(kind: type[commands.NodeCommand[object]]) -> None:
    about_one = made(kind, Life(2, 5))
    assert [why_not_command(shown, about_one) is None for shown in EVERYONE] == [False] * 5


SEGMENT = SegmentKey(UUID(int=1), 0, 0, 0)


def about(lock: Lock, caller: Life | None) -> list[commands.Command[object]]:
    return [
        commands.ReleaseLock(lock, caller=caller),
        commands.CommitParts(lock, (), caller=caller),
        commands.ReplaceParts(lock, (), caller=caller),
        commands.CompleteRemote(lock, SEGMENT, "key", b"digest", 1, caller=caller),
        commands.AcquireLock(lock.name, lock.holder, 60_000, caller=caller),
        commands.AcquireLock(lock.name, lock.holder, 60_000, renews=1, caller=caller),
    ]


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize(
    ("name", "holder"),
    [
        ("tier/2", "node-2/1"),
        ("tier/2", holder_name("node-2/1", UUID(int=7))),
        ("tier/1", "node-1/4"),
        ("tier/1", "node-1/50"),
        ("tier/1", "node-1"),
        ("tier/1", ""),
        (COMPACTION_LOCK, "job-1"),
        ("tier/9", "node-2/1/mount"),
        ("disk/disk-3", "rebuild"),
    ],
)
def test_a_life_uses_no_lock_of_another_holder(name: str, holder: str) -> None:
    """Of another node, of an earlier life, of a job, of a mount that another node holds."""
    for command in about(Lock(name, holder, 1, 0), Life(1, 5)):
        assert why_not_command(ONE, command) is not None


@pytest.mark.parametrize("name", ["tier/2", "tier/01", "disk/disk-3", "backup", COMPACTION_LOCK])
def test_a_life_takes_no_lock_but_its_own(name: str) -> None:
    assert why_not_command(ONE, commands.AcquireLock(name, "node-1/5", 60_000, caller=Life(1, 5))) is not None


def test_a_life_uses_its_own_lock_and_those_of_mounts_that_it_holds() -> None:
    life = Life(1, 5)
    for command in about(Lock("tier/1", holder_name("node-1/5", UUID(int=7)), 1, 0), life):
        assert why_not_command(ONE, command) is None
    of_mount = Lock("tier/9", "node-1/5/mount", 1, 0)
    assert why_not_command(ONE, commands.CommitParts(of_mount, (), caller=life)) is None


def test_a_sweeper_takes_the_lock_of_another_for_a_moment_alone() -> None:
    for name in ("tier/2", COMPACTION_LOCK):
        sweep = commands.AcquireLock(name, SWEEPER, SWEEP_LEASE_MS, caller=Life(1, 5))
        assert [why_not_command(shown, sweep) is None for shown in EVERYONE] == [False, True, False, False, False]
        longer = commands.AcquireLock(name, SWEEPER, SWEEP_LEASE_MS + 1, caller=Life(1, 5))
        assert why_not_command(ONE, longer) is not None
    assert (
        why_not_command(ONE, commands.AcquireLock("disk/disk-3", SWEEPER, SWEEP_LEASE_MS, caller=Life(1, 5)))
        is not None
    )
    assert why_not_command(ONE, commands.ReleaseLock(Lock("tier/2", SWEEPER, 1, 0), caller=Life(1, 5))) is not None


def test_a_job_without_a_certificate_uses_the_lock_of_jobs_alone() -> None:
    for name, may in ((COMPACTION_LOCK, True), ("tier/2", False), ("backup", False)):
        lock = Lock(name, "job-1", 1, 0)
        for command in (
            commands.AcquireLock(name, "job-1", 1_000),
            commands.ReleaseLock(lock),
            commands.ReplaceManifest(lock, SEGMENT, b"old", "key", b"digest", 1),
        ):
            assert [why_not_command(shown, command) is None for shown in EVERYONE] == [may, False, False, False, may]


def test_only_nodes_read_the_keys_of_users() -> None:
    assert [why_not_credentials(shown) is None for shown in EVERYONE] == [False, True, True, False, False]
    assert all(why_not_credentials(shown, is_retired=True) is not None for shown in EVERYONE)
    assert [sees_tokens(shown) for shown in EVERYONE] == [False, True, True, False, False]


# Nodes --------------------------------------------------------------------------------------------------------------
def test_a_replica_fetches_under_its_own_id() -> None:
    assert may_replicate(ONE.principal, 1)
    for principal in (TWO.principal, META.principal, OPERATOR.principal, ANONYMOUS, Principal(USER, "1")):
        assert not may_replicate(principal, 1)
    assert not may_replicate(ONE.principal, -1)
