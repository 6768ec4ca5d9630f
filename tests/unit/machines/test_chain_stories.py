"""One shard's segments, told as stories: `chain_stories/*.txt` say what befalls them and what must follow.

The language is in support.chain_story. Each story is also its own expected output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chain_story import ChainStory

STORIES = sorted((Path(__file__).parent / "chain_stories").glob("*.txt"))


@pytest.mark.fault("leader-mistakes-end-followers", "shard-moves-node-know", "leader-handed-shard-segment")
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_story_is_true(story: Path) -> None:
    told = story.read_text()
    assert ChainStory().play(told) == told


def test_the_stories_are_there() -> None:
    assert len(STORIES) > 25
