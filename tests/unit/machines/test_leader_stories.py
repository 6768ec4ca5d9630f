"""One segment's leader, told as stories: `leader_stories/*.txt` say what it hears and what must follow.

The language is in support.leader_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.leader_story import LeaderStory

STORIES = sorted((Path(__file__).parent / "leader_stories").glob("*.txt"))


@pytest.mark.fault(
    "proposal-isr-fails-conflicts",
    "follower-confirmed-fetch-previous",
    "follower-caught-dies-lives",
    "replica-disk-progress-fetches",
)
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert LeaderStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) > 12
