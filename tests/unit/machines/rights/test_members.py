"""What members of a cluster may do: a node acts as itself alone, and no other member or client acts as a node."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from stratalog.machines.rights.members import (
    may_replicate,
    why_not_command,
    why_not_credentials,
    why_not_dialled,
    why_not_method,
    why_not_node,
    why_not_of_cluster,
    why_not_own,
)
from stratalog.model.commands import table_commands
from stratalog.model.commands.mount_commands import CloseVolume, MoveMount, OpenVolume, TakeMount
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.table_commands import CreateTopic, ForgetLocal, NodeCommand, RegisterNode
from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Member, Part, member_among
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.retirement import RetireMode
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
    assert (why_not_command(shown, RegisterNode(NodeInfo(1, "disk", "host", 9092))) is None) == (shown == ONE)
    assert (why_not_command(shown, TakeMount("node-9", 1, caller=Life(1, 1))) is None) == (shown == ONE)


def commands_of_nodes() -> list[type[NodeCommand[object]]]:
    return [kind for kind in get_args(table_commands.AskedCommand) if issubclass(kind, NodeCommand)]


@pytest.mark.parametrize("kind", commands_of_nodes(), ids=lambda kind: kind.__name__)
def test_no_command_is_taken_in_the_name_of_another_node(kind: type[NodeCommand[object]]) -> None:
    """The fields that decide are the same in all of them: whatever else a command says counts for nothing here."""
    fields = [name for name in inspect.signature(kind).parameters if name != "caller"]
    command = kind(**{name: 2 if name == "node_id" else None for name in fields}, caller=Life(2, 1))
    for shown in (None, ONE, META, OPERATOR):
        assert why_not_command(shown, command) is not None


def test_what_a_node_names_beside_its_life_is_its_own_where_it_frees_copies() -> None:
    assert why_not_command(ONE, ForgetLocal((), 1, caller=Life(1, 1))) is None
    assert why_not_command(ONE, ForgetLocal((), 2, caller=Life(1, 1))) is not None


def test_the_process_of_a_retired_directory_speaks_for_its_own_node() -> None:
    for made in (OpenVolume(1, "disk", "host", 9092, "start"), CloseVolume(1, "start")):
        assert [why_not_command(shown, made) is None for shown in EVERYONE] == [False, True, False, False, False]


def test_a_node_neither_retires_others_nor_acts_without_its_life() -> None:
    for command in (
        RetireNode(2, RetireMode.OFFLOAD, caller=Life(1, 1)),
        RetireNode(2, RetireMode.OFFLOAD),
        CancelRetirement(2, caller=Life(1, 1)),
        CreateTopic("flights", 1, 1),
    ):
        assert why_not_command(ONE, command) is not None
    assert why_not_command(ONE, CreateTopic("flights", 1, 1, caller=Life(1, 1))) is None


def test_operators_and_holders_of_the_token_do_all_that_is_not_a_nodes() -> None:
    for shown in (None, OPERATOR):
        for command in (RetireNode(2, RetireMode.OFFLOAD), CreateTopic("flights", 1, 1), MoveMount("node-9", 1)):
            assert why_not_command(shown, command) is None
    assert why_not_command(META, CreateTopic("flights", 1, 1)) is not None


def test_only_nodes_read_the_keys_of_users() -> None:
    assert [why_not_credentials(shown) is None for shown in EVERYONE] == [False, True, True, False, False]


# Ports --------------------------------------------------------------------------------------------------------------
def test_nodes_and_the_meta_service_change_nothing_at_admin_ports() -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "BREW"):
        assert [why_not_method(shown, method) is None for shown in EVERYONE] == [True, False, False, False, True]
    assert all(why_not_method(shown, "GET") is None for shown in EVERYONE)


def test_a_replica_fetches_under_its_own_id() -> None:
    assert may_replicate(ONE.principal, 1)
    for principal in (TWO.principal, META.principal, OPERATOR.principal, ANONYMOUS, Principal(USER, "1")):
        assert not may_replicate(principal, 1)
    assert not may_replicate(ONE.principal, -1)
