"""Each topic that Kafka takes has a folder in the target of a job, and no two have the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.objects.keys import check_key
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder

NAMES = st.from_regex(re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII), fullmatch=True).filter(
    lambda name: name not in (".", "..")
)


@given(NAMES)
def test_a_topic_that_can_be_a_folder_is_one(name: str) -> None:
    folder = topic_folder(name)
    check_key(f"{folder}/data/by_date=2013-01-01/{'x' * 80}.parquet")
    assert (folder == name) is (len(name) <= 200 and not name.startswith("."))


@pytest.mark.fault("topic-name-longer-folder")
def test_topics_that_cannot_be_folders_do_not_share_one() -> None:
    names = ["...", ".a", "a", "n" * 200, "n" * 201, "n" * 249, "." + "n" * 199, "." + "n" * 200, "n" * 200 + "m"]
    assert len({*map(topic_folder, names)}) == len(names)
