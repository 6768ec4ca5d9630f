"""Node leases, told as stories: `lease_stories/*.txt` say what a leader of the meta service hears, and what it notes.

The language is in support.lease_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lease_story import LeaseStory

STORIES = sorted((Path(__file__).parent / "lease_stories").glob("*.txt"))


@pytest.mark.fault("node-sends-heartbeats-meta", "event-loop-node-busy", "node-heartbeats-arrive-hours")
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert LeaseStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) >= 8
