"""AlterUserScramCredentials (51): sets and deletes users' passwords, which clients send salted.

Only keys made of them are kept, from which no client can log in. A user may be named once in a request. The answer
comes when the meta service has them and this node decides by them. Flexible from 0.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.sasl.scram import credential_from
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.errors import InvalidRequest, NotFound, Rejected, StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.model.scram import LEAST_ITERATIONS, MOST_ITERATIONS, CredentialName, ScramMechanism, UserCredential
from stratalog_node.serve.api.rights.acl_fields import SHOWN_WITHIN_MS, no_right_fields
from stratalog_node.serve.api.topic_answers import answer_to
from stratalog_node.serve.connections.context import NodeServices, RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.catalog.wait import catalog_shows_each


class _UserRefused(Rejected):
    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(51, context.header.api_version)
    count = len(request.deletions) + len(request.upsertions)
    if (refused := no_right_fields(context, Operation.ALTER)) is not None:
        denied = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
        return await encoded(schema, len(denied), lambda: {"results": [{"user": user} | refused for user in denied]})
    outcomes, command = await off_loop(count, lambda: _read(request))
    outcomes |= await _alter(context.services, command)
    return await encoded(
        schema, len(outcomes), lambda: {"results": [_answer(user, error) for user, error in outcomes.items()]}
    )


def _read(request: Any) -> tuple[dict[str, StratalogError | None], AlterCredentials]:
    """What is wrong with users, and what is to be done for the others."""
    times = Counter(one.name for one in (*request.deletions, *request.upsertions))
    outcomes: dict[str, StratalogError | None] = {}
    deleted: list[CredentialName] = []
    put: list[UserCredential] = []
    for one in (*request.deletions, *request.upsertions):
        try:
            if times[one.name] > 1:
                raise _UserRefused(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            name = _name_of(one)
            if hasattr(one, "salted_password"):
                put.append(_credential_of(name, one))
            else:
                deleted.append(name)
        except StratalogError as error:
            outcomes[one.name] = error
    return outcomes, AlterCredentials(tuple(deleted), tuple(put))


def _name_of(asked: Any) -> CredentialName:
    if not asked.name:
        raise _UserRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        return CredentialName(asked.name, ScramMechanism(asked.mechanism))
    except ValueError:
        raise _UserRefused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def _credential_of(name: CredentialName, asked: Any) -> UserCredential:
    if asked.iterations < LEAST_ITERATIONS:
        raise _UserRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > MOST_ITERATIONS:
        raise _UserRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    kept = credential_from(name.mechanism, asked.salted_password, asked.salt, asked.iterations)
    return UserCredential(name.user, name.mechanism, kept)


async def _alter(services: NodeServices, command: AlterCredentials) -> dict[str, StratalogError | None]:
    names = [*command.deleted, *(one.name for one in command.put)]
    if not names:
        return {}
    try:
        outcomes = await services.meta.perform(command)
    except StratalogError as error:
        return {name.user: error for name in names}
    done = {name.user: outcome for name, outcome in zip(names, outcomes, strict=True)}
    gone = [name for name in command.deleted if done[name.user] is None]
    put = [one for one in command.put if done[one.user] is None]
    rights = services.catalog.rights
    wanted = dict.fromkeys(gone) | {one.name: one.credential for one in put}
    await catalog_shows_each(
        wanted, lambda name: rights.credential(name.user, name.mechanism) == wanted[name], SHOWN_WITHIN_MS
    )
    return done


def _answer(user: str, error: StratalogError | None) -> dict[str, object]:
    match error:
        case None:
            code, message = ErrorCode.NONE, None
        case _UserRefused():
            code, message = error.code, str(error)
        case NotFound():
            code, message = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        case InvalidRequest():
            code, message = ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)
        case _:
            code, message = answer_to(error)
    return {"user": user, "error_code": code, "error_message": message}


_NEEDS = (Need(Operation.ALTER, ResourceType.CLUSTER, "31 for each user"),)

API = Api(51, "AlterUserScramCredentials", 0, 0, handle, needs=_NEEDS)
