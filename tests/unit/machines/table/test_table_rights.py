"""Rules and credentials in the table: what is kept, refused, found and deleted, and how much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.table import rights
from stratalog.model.commands.rights_commands import AlterCredentials, CreateRules, DeletedRules, DeleteRules
from stratalog.model.errors import InvalidRequest, LimitExceeded, NotFound
from stratalog.model.metadata import CredentialChanged, CredentialDeleted, RuleCreated, RuleDeleted
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from support.table_stories import NEW_ID, TableStory, state_of

ALLOW = Permission.ALLOW
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def a_rule(name: str, pattern: PatternType = PatternType.LITERAL, who: str = "User:a") -> Rule:
    return Rule(Resource(ResourceType.TOPIC, name, pattern), who, "*", Operation.READ, Permission.ALLOW)


def a_user(name: str = "alice", mechanism: ScramMechanism = SHA_256, iterations: int = 4_096) -> UserCredential:
    keys = b"s" * mechanism.key_bytes, b"k" * mechanism.key_bytes
    return UserCredential(name, mechanism, ScramCredential(b"salt", *keys, iterations))


# Rules --------------------------------------------------------------------------------------------------------------
def test_each_rule_is_kept_or_refused_by_itself() -> None:
    story = TableStory(nodes=0)
    good, bad = a_rule("orders"), a_rule("")
    done = story.do(CreateRules((good, bad, a_rule("x" * 513))))
    kept, refused, too_long = done.result
    assert kept == good
    assert isinstance(refused, InvalidRequest) and str(refused) == "Invalid empty resource name"
    assert isinstance(too_long, InvalidRequest) and "513 characters" in str(too_long)
    assert done.change_set is not None and done.change_set.changes == (RuleCreated(good),)


def test_a_rule_that_is_there_is_answered_as_created_and_changes_nothing() -> None:
    story = TableStory(nodes=0)
    story.do(CreateRules((a_rule("orders"),)))
    again = story.do(CreateRules((a_rule("orders"), a_rule("orders"))))
    assert again.result == (a_rule("orders"), a_rule("orders"))
    assert again.change_set is None and not again.writes


def test_filters_are_answered_one_by_one_and_a_rule_that_two_find_is_deleted_once() -> None:
    story = TableStory(nodes=0)
    literal, prefixed, other = a_rule("orders"), a_rule("ord", PatternType.PREFIXED), a_rule("payments")
    story.do(CreateRules((literal, prefixed, other)))
    exact = RuleFilter(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", Operation.READ, ALLOW)
    matching = RuleFilter(name="orders", pattern=PatternType.MATCH)
    nothing = RuleFilter(name="orders", principal="User:b")
    wrong = RuleFilter(operation=Operation.UNKNOWN)
    done = story.do(DeleteRules((exact, matching, nothing, wrong, replace(exact, name="absent"))))
    assert done.result[:3] == (DeletedRules((literal,)), DeletedRules((literal, prefixed)), DeletedRules(()))
    assert isinstance(done.result[3], InvalidRequest) and done.result[4] == DeletedRules(())
    assert done.change_set is not None and done.change_set.changes == (RuleDeleted(literal), RuleDeleted(prefixed))
    assert [*story.table.state.rules] == [other]


@pytest.mark.parametrize(
    "field", ["resource_type", "name", "pattern", "principal", "host", "operation", "permission", None]
)
def test_a_filter_that_names_all_of_a_rule_finds_what_one_that_leaves_something_open_finds(field: str | None) -> None:
    story = TableStory(nodes=0)
    rule = a_rule("orders")
    story.do(CreateRules((rule, a_rule("orders", PatternType.PREFIXED), a_rule("orders", who="User:b"))))
    exact = RuleFilter(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", Operation.READ, ALLOW)
    wanted = exact if field is None else replace(exact, **{field: getattr(RuleFilter(), field)})
    (found,) = story.do(DeleteRules((wanted,))).result
    assert isinstance(found, DeletedRules) and rule in found.rules
    assert len(found.rules) == (2 if field in ("pattern", "principal") else 1)


def test_filters_that_would_compare_too_many_rules_are_refused_before_any_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rights, "MAX_RULES_COMPARED", 6)
    story = TableStory(nodes=0)
    rules = tuple(map(a_rule, ("a", "b", "c")))
    story.do(CreateRules(rules))
    absent = [RuleFilter(principal=f"User:{number}") for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(rights, "is_found", lambda *_: pytest.fail("a rule is compared"))
        with pytest.raises(LimitExceeded, match=r"3 filters leave something open, .* all 3 rules: ask in parts of 2"):
            story.do(DeleteRules(tuple(absent)))
    assert [*story.table.state.rules] == [*rules]
    whole = RuleFilter(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:a", "*", Operation.READ, ALLOW)
    done = story.do(DeleteRules((*absent[:2], *[whole] * 10)))
    assert done.result[-1] == DeletedRules((rules[0],)), "what a filter names whole costs no comparison"


def test_there_is_a_greatest_number_of_rules_and_what_fits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_RULES", 2)
    story = TableStory(nodes=0)
    one, two, three = story.do(CreateRules(tuple(map(a_rule, "abc")))).result
    assert (one, two) == (a_rule("a"), a_rule("b")) and isinstance(three, LimitExceeded)
    assert story.do(CreateRules((a_rule("a"),))).result == (a_rule("a"),), "what is there is no new one"
    story.do(DeleteRules((RuleFilter(name="a"),)))
    assert story.do(CreateRules((a_rule("c"),))).result == (a_rule("c"),)


def test_one_request_names_a_limited_number() -> None:
    story = TableStory(nodes=0)
    before = state_of(story.table)
    for command in (
        CreateRules((a_rule("a"),) * 10_001),
        DeleteRules((RuleFilter(),) * 1_001),
        AlterCredentials(put=tuple(a_user(str(number)) for number in range(1_001))),
    ):
        with pytest.raises(LimitExceeded, match="ask in parts"):
            story.do(command)
    assert state_of(story.table) == before


def test_filters_that_find_everything_again_and_again_are_refused_and_delete_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rights, "MAX_RULES", 3)
    story = TableStory(nodes=0)
    story.do(CreateRules(tuple(map(a_rule, "abc"))))
    with pytest.raises(LimitExceeded, match="more than 6 rules"):
        story.do(DeleteRules((RuleFilter(),) * 3))
    assert len(story.table.state.rules) == 3


def test_many_rules_are_created_and_deleted_in_steps() -> None:
    story = TableStory(nodes=0)
    rules = tuple(a_rule(str(number)) for number in range(1_000))
    for command in (CreateRules(rules), DeleteRules((RuleFilter(),))):
        steps = story.table.apply_in_steps(command, 0, NEW_ID)
        count = sum(1 for _ in steps)
        assert count >= 3, "others run between them"


def test_what_takes_a_right_away_comes_first_in_a_change_set() -> None:
    story = TableStory(nodes=0)
    allow, deny = a_rule("orders"), replace(a_rule("orders"), permission=Permission.DENY)
    made = story.do(CreateRules((allow, deny))).change_set
    ended = story.do(DeleteRules((RuleFilter(),))).change_set
    assert made is not None and made.changes == (RuleCreated(deny), RuleCreated(allow))
    assert ended is not None and ended.changes == (RuleDeleted(allow), RuleDeleted(deny))


# Credentials --------------------------------------------------------------------------------------------------------
def test_a_credential_is_set_replaced_and_deleted() -> None:
    story = TableStory(nodes=0)
    first, second, other = a_user(), a_user(iterations=8_192), a_user(mechanism=SHA_512)
    story.do(AlterCredentials(put=(first, other)))
    done = story.do(AlterCredentials(put=(second,)))
    assert done.result == (None,)
    assert done.change_set is not None and done.change_set.changes == (CredentialChanged(second),)
    assert story.do(AlterCredentials(put=(second,))).change_set is None, "again changes nothing"
    done = story.do(AlterCredentials((other.name,)))
    assert done.change_set is not None and done.change_set.changes == (CredentialDeleted(other.name),)
    assert story.table.state.credentials == {second.name: second}


def test_of_a_user_all_is_done_or_nothing_and_others_are_not_concerned() -> None:
    story = TableStory(nodes=0)
    absent = CredentialName("alice", SHA_512)
    outcomes = story.do(AlterCredentials((absent,), (a_user(), a_user("bob")))).result
    assert isinstance(outcomes[0], NotFound) and outcomes[1] is outcomes[0] and outcomes[2] is None
    assert {name.user for name in story.table.state.credentials} == {"bob"}


@pytest.mark.parametrize(
    "wrong",
    [
        a_user(""),
        a_user("x" * 513),
        a_user(iterations=4_095),
        a_user(iterations=16_385),
        replace(a_user(), credential=replace(a_user().credential, salt=b"")),
        replace(a_user(), credential=replace(a_user().credential, salt=b"x" * 257)),
        replace(a_user(), credential=replace(a_user().credential, stored_key=b"short")),
        replace(a_user(), mechanism=SHA_512),
    ],
    ids=["no name", "a long name", "few", "many", "no salt", "a long salt", "a short key", "keys of the other"],
)
def test_what_no_client_can_use_is_refused_in_words_without_a_key(wrong: UserCredential) -> None:
    story = TableStory(nodes=0)
    (outcome,) = story.do(AlterCredentials(put=(wrong,))).result
    assert isinstance(outcome, InvalidRequest) and "ssss" not in str(outcome) and "kkkk" not in str(outcome)
    assert not story.table.state.credentials


def test_a_credential_that_is_named_twice_is_not_altered() -> None:
    story = TableStory(nodes=0)
    story.do(AlterCredentials(put=(a_user(),)))
    for command in (
        AlterCredentials(put=(a_user(iterations=5_000), a_user(iterations=6_000))),
        AlterCredentials((a_user().name,), (a_user(),)),
    ):
        outcomes = story.do(command).result
        assert [type(outcome) for outcome in outcomes] == [InvalidRequest] * 2
    assert story.table.state.credentials == {a_user().name: a_user()}


def test_there_is_a_greatest_number_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_CREDENTIALS", 2)
    story = TableStory(nodes=0)
    story.do(AlterCredentials(put=(a_user("a"), a_user("b"))))
    with pytest.raises(LimitExceeded, match="more than 2 credentials"):
        story.do(AlterCredentials(put=(a_user("a", iterations=5_000), a_user("c"))))
    assert story.table.state.credentials == {one.name: one for one in (a_user("a"), a_user("b"))}, (
        "nothing of it is done"
    )
    assert story.do(AlterCredentials((a_user("a").name,), (a_user("c"),))).result == (None, None)


def test_no_text_of_a_command_or_a_change_has_a_key() -> None:
    for shown in (AlterCredentials(put=(a_user(),)), CredentialChanged(a_user()), a_user()):
        assert "ssss" not in repr(shown) and "kkkk" not in f"{shown}" and "alice" in repr(shown)
