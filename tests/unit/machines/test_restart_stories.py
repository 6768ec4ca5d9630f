"""One shard's restart, told as stories: `restart_stories/*.txt` draw a disk, and say what must follow, line by line.

The language is in support.restart_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.restart_story import RestartStory

STORIES = sorted((Path(__file__).parent / "restart_stories").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert RestartStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) > 35
