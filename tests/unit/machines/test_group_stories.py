"""One group, told as stories: `group_stories/*.txt` say what clients do and what must follow, line by line.

The language is in support.group_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.group_story import GroupStory

STORIES = sorted((Path(__file__).parent / "group_stories").glob("*.txt"))


@pytest.mark.fault("static-newcomer-connects-joingroup")
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert GroupStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) > 30
