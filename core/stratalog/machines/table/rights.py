"""Rules (ACLs), SCRAM credentials and quotas in the table: creating, changing and deleting them.

The order of commands is the order of rights: a rule that a command deleted is gone until a later one creates it.
Pure. Cost: a rule that is named costs a lookup, a filter that leaves something open reads all rules.
"""

from __future__ import annotations

from stratalog.machines.quotas.alterations import NO_LIMITS, altered
from stratalog.machines.rights.authorizer import check_filter, check_rule, is_found
from stratalog.machines.table.bounds import (
    MAX_CREDENTIALS,
    MAX_CREDENTIALS_NAMED,
    MAX_NAME_CHARACTERS,
    MAX_QUOTA_ENTITIES,
    MAX_QUOTAS_NAMED,
    MAX_RULE_FILTERS,
    MAX_RULES,
    MAX_RULES_COMPARED,
    MAX_RULES_NAMED,
    MAX_SALT_BYTES,
    check_names,
)
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction
from stratalog.model.commands.rights_commands import (
    AlterCredentials,
    AlterQuotas,
    CreateRules,
    CredentialOutcomes,
    DeletedRules,
    DeleteRules,
    DeletionOutcomes,
    QuotaOutcomes,
    RuleOutcomes,
)
from stratalog.model.errors import InvalidRequest, LimitExceeded, NotFound, Rejected, StratalogError
from stratalog.model.quotas import EntityQuotas, QuotaAlteration
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import LEAST_ITERATIONS, MOST_ITERATIONS, CredentialName, UserCredential


def create_rules(tx: TableTransaction, command: CreateRules) -> Steps[RuleOutcomes]:
    if len(command.rules) > MAX_RULES_NAMED:
        raise LimitExceeded(f"{len(command.rules)} rules are named, at most {MAX_RULES_NAMED} may be: ask in parts")
    outcomes: list[Rule | StratalogError] = []
    for number, rule in enumerate(command.rules, 1):
        try:
            _create(tx, rule)
            outcomes.append(rule)
        except Rejected as error:
            outcomes.append(error)
        if number % RECORDS_PER_STEP == 0:
            yield
    return tuple(outcomes)


def _create(tx: TableTransaction, rule: Rule) -> None:
    check_rule(rule)
    check_names("rule", (rule.resource.name, rule.principal, rule.host))
    if rule in tx.state.rules:
        return
    if len(tx.state.rules) >= MAX_RULES:
        raise LimitExceeded(
            f"there are {MAX_RULES} rules already: delete some, or use prefixed patterns in place of many names"
        )
    tx.put_rule(rule)


def delete_rules(tx: TableTransaction, command: DeleteRules) -> Steps[DeletionOutcomes]:
    if len(command.filters) > MAX_RULE_FILTERS:
        raise LimitExceeded(
            f"{len(command.filters)} filters are named, at most {MAX_RULE_FILTERS} may be: ask in parts"
        )
    open_count = sum(_named_by(wanted) is None for wanted in command.filters)
    if open_count > 1 and open_count * len(tx.state.rules) > MAX_RULES_COMPARED:
        raise LimitExceeded(
            f"{open_count} filters leave something open, and each is compared with all {len(tx.state.rules)} rules: "
            f"ask in parts of {max(MAX_RULES_COMPARED // len(tx.state.rules), 1)}, or name each rule whole"
        )
    outcomes: list[DeletedRules | StratalogError] = []
    deleted: dict[Rule, None] = {}
    count = 0
    for wanted in command.filters:
        try:
            check_filter(wanted)
        except InvalidRequest as error:
            outcomes.append(error)
            continue
        found = yield from _find(tx, wanted)
        count += len(found)
        if count > 2 * MAX_RULES:
            raise LimitExceeded(f"these filters find more than {2 * MAX_RULES} rules: ask in parts")
        deleted.update(dict.fromkeys(found))
        outcomes.append(DeletedRules(tuple(found)))
    for number, rule in enumerate(deleted, 1):
        tx.drop_rule(rule)
        if number % RECORDS_PER_STEP == 0:
            yield
    return tuple(outcomes)


def _find(tx: TableTransaction, wanted: RuleFilter) -> Steps[list[Rule]]:
    rules = tx.state.rules
    exact = _named_by(wanted)
    if exact is not None:
        return [exact] if exact in rules else []
    found: list[Rule] = []
    for number, rule in enumerate(rules, 1):
        if is_found(wanted, rule):
            found.append(rule)
        if number % RECORDS_PER_STEP == 0:
            yield
    return found


def _named_by(wanted: RuleFilter) -> Rule | None:
    """The one rule that a filter can find; None if it leaves something open."""
    if (
        wanted.resource_type is ResourceType.ANY
        or wanted.pattern not in (PatternType.LITERAL, PatternType.PREFIXED)
        or wanted.operation is Operation.ANY
        or wanted.permission is Permission.ANY
        or wanted.name is None
        or wanted.principal is None
        or wanted.host is None
    ):
        return None
    resource = Resource(wanted.resource_type, wanted.name, wanted.pattern)
    return Rule(resource, wanted.principal, wanted.host, wanted.operation, wanted.permission)


def alter_credentials(tx: TableTransaction, command: AlterCredentials) -> Steps[CredentialOutcomes]:
    names = [*command.deleted, *(one.name for one in command.put)]
    if len(names) > MAX_CREDENTIALS_NAMED:
        raise LimitExceeded(f"{len(names)} credentials are named, at most {MAX_CREDENTIALS_NAMED} may be: ask in parts")
    problems: dict[str, StratalogError] = {}
    named: set[CredentialName] = set()
    count = len(tx.state.credentials)
    for name in names:
        if name in named:
            problems.setdefault(name.user, InvalidRequest(f"user {name.user!r:.80}: a credential is named twice"))
        named.add(name)
    for name in command.deleted:
        if name not in tx.state.credentials:
            problems.setdefault(
                name.user, NotFound(f"user {name.user!r:.80} has no credential for {name.mechanism.mechanism_name}")
            )
    for one in command.put:
        try:
            check_credential(one)
        except InvalidRequest as error:
            problems.setdefault(one.user, error)
    for name in command.deleted:
        if name.user not in problems:
            tx.drop_credential(name)
            count -= 1
    for one in command.put:
        if one.user in problems:
            continue
        known = tx.state.credentials.get(one.name)
        if known is None:
            count += 1
        if count > MAX_CREDENTIALS:
            raise LimitExceeded(f"there would be more than {MAX_CREDENTIALS} credentials: delete some first")
        if known != one:
            tx.put_credential(one)
    yield
    return tuple(problems.get(name.user) for name in names)


def check_credential(one: UserCredential) -> None:
    """That a credential may be kept. Raises: InvalidRequest, which names no key."""
    kept, mechanism = one.credential, one.mechanism
    if not 0 < len(one.user) <= MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"a user's name has 1 to {MAX_NAME_CHARACTERS} characters, not {len(one.user)}")
    if not LEAST_ITERATIONS <= kept.iterations <= MOST_ITERATIONS:
        raise InvalidRequest(
            f"user {one.user!r:.80}: expected {LEAST_ITERATIONS} to {MOST_ITERATIONS} iterations, not {kept.iterations}"
        )
    if not 0 < len(kept.salt) <= MAX_SALT_BYTES:
        raise InvalidRequest(f"user {one.user!r:.80}: a salt has 1 to {MAX_SALT_BYTES} bytes, not {len(kept.salt)}")
    for key in (kept.stored_key, kept.server_key):
        if len(key) != mechanism.key_bytes:
            raise InvalidRequest(
                f"user {one.user!r:.80}: keys of {mechanism.mechanism_name} have {mechanism.key_bytes} bytes, "
                f"not {len(key)}"
            )


def alter_quotas(tx: TableTransaction, command: AlterQuotas) -> Steps[QuotaOutcomes]:
    if len(command.alterations) > MAX_QUOTAS_NAMED:
        raise LimitExceeded(
            f"{len(command.alterations)} entities are named, at most {MAX_QUOTAS_NAMED} may be: ask in parts"
        )
    outcomes: list[StratalogError | None] = []
    for number, alteration in enumerate(command.alterations, 1):
        try:
            _alter(tx, alteration)
            outcomes.append(None)
        except Rejected as error:
            outcomes.append(error)
        if number % RECORDS_PER_STEP == 0:
            yield
    return tuple(outcomes)


def _alter(tx: TableTransaction, alteration: QuotaAlteration) -> None:
    entity = alteration.entity
    check_names("quota", [name for name in (entity.user, entity.client_id, entity.ip) if name is not None])
    known = tx.state.quotas.get(entity, NO_LIMITS)
    limits = altered(known, alteration)
    if limits == known:
        return
    if limits == NO_LIMITS:
        tx.drop_quotas(entity)
        return
    if known == NO_LIMITS and len(tx.state.quotas) >= MAX_QUOTA_ENTITIES:
        raise LimitExceeded(
            f"{MAX_QUOTA_ENTITIES} entities have quotas already: delete some, or use default entities in place of many "
            "names"
        )
    tx.put_quotas(EntityQuotas(entity, limits))
