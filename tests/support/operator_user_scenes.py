"""A small world with users, and what a person does to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratalog_operator.resources.user import StorageUserSpec
from support.operator_world import World, world


def users_world(*users: Any) -> World:
    """Settled, with these users."""
    one = world(3)
    one.settle()
    one.users = {user.name: user for user in users}
    one.settle()
    one.done.clear()
    return one


def edit_user(one: World, name: str = "alice", **changes: Any) -> None:
    """`changes`: fields of the spec, as in YAML; None removes one."""
    user = one.users[name]
    given = user.spec.model_dump(by_alias=True, exclude_none=True) | changes
    given = {key: value for key, value in given.items() if value is not None}
    one.users[name] = replace(user, spec=StorageUserSpec.model_validate(given), generation=user.generation + 1)


def annotate_user(one: World, name: str = "alice", **words: str) -> None:
    given = {f"stratalog.dev/{key.replace('_', '-')}": word for key, word in words.items()}
    one.users[name] = replace(one.users[name], annotations={**one.users[name].annotations, **given})


def delete_user(one: World, name: str = "alice") -> None:
    one.users[name] = replace(one.users[name], is_deleting=True, generation=one.users[name].generation + 1)
