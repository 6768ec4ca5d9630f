"""What a failed probe says names the trouble, and not the object that was tried."""

from __future__ import annotations

import pytest

from stratalog.objects.probe import without_name

NAME = "05e7c0d1a2b34c5d8e9fa0b1c2d3e4f5"


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (f"put s3://b/p/probe/{NAME}: no credentials for the store", "no credentials for the store"),
        (f"put file:///a folder/b/probe/{NAME}: cannot be made: full", "cannot be made: full"),
        ("s3://b: an object came back changed", "s3://b: an object came back changed"),
        ("put s3://b/probe/mine: the store answered 403", "put s3://b/probe/mine: the store answered 403"),
    ],
)
def test_the_request_and_its_object_are_left_out(told: str, left: str) -> None:
    assert without_name(told) == left
