"""One segment's follower, told as stories: `follower_stories/*.txt` say what it hears and what must follow.

The language is in support.follower_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.follower_story import FollowerStory

STORIES = sorted((Path(__file__).parent / "follower_stories").glob("*.txt"))


@pytest.mark.fault(
    "node-dies-thousands-segments", "two-nodes-lose-copies", "source-recovery-ends-segment", "copy-opened-topic-segment"
)
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert FollowerStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) > 20
