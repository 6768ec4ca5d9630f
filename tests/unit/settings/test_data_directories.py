"""How a node's further data directories are named."""

from __future__ import annotations

import pytest

from stratalog.model.data_directories import DirectorySpec, parse_directories
from stratalog.settings.process import ProcessSettings


def test_directories_have_a_class_and_a_path() -> None:
    found = parse_directories("hdd:/data2/ , slow-disk:/mnt/d:3")
    assert found == (DirectorySpec("hdd", "/data2"), DirectorySpec("slow-disk", "/mnt/d:3"))
    assert parse_directories("") == ()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("/data2", "CLASS:PATH"),
        (":/data2", "CLASS:PATH"),
        ("HDD:/data2", "CLASS:PATH"),
        ("hdd:data2", "absolute"),
        ("hdd:/", "absolute"),
        ("hdd:/a/../b", "absolute"),
        ("hdd:/a//b", "absolute"),
        ("hdd:/a,hdd:/a", "overlap"),
        ("hdd:/a,ssd:/a/b", "overlap"),
        ("hdd:/a/b,ssd:/a", "overlap"),
    ],
)
def test_a_wrong_entry_is_refused_and_named(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_directories(value)


def test_names_that_begin_alike_are_different_directories() -> None:
    assert len(parse_directories("hdd:/data,hdd:/data2")) == 2


def test_only_directories_that_are_named_are_drained() -> None:
    settings = ProcessSettings(data_dirs="hdd:/a,hdd:/b", data_drain_dirs="/b/")
    assert settings.drained_directories == {"/b"}
    with pytest.raises(ValueError, match=r"/c is not in data\.dirs"):
        ProcessSettings(data_dirs="hdd:/a", data_drain_dirs="/c")
