"""The convention by which commands in the pages are found."""

from __future__ import annotations

import pytest

from support.docs_commands import commands_of


def test_commands_are_found_with_their_lines_and_output_is_not_mistaken_for_one() -> None:
    page = "text\n```console\n$ one\noutput\n$ two \\\n    --more\n```\n```\n$ not this\n```\n"
    assert [(command.line, command.text) for command in commands_of(page)] == [(3, "one"), (5, "two --more")]


def test_a_marker_skips_a_block_or_expects_failure() -> None:
    skipped = "<!-- commands: skip, needs a cluster -->\n```console\n$ kubectl\n```\n"
    page = skipped + "<!-- commands: fail -->\n```console\n$ false\n```\n"
    (command,) = commands_of(page)
    assert command.text == "false"
    assert command.must_fail


def test_a_block_is_not_skipped_without_a_reason() -> None:
    with pytest.raises(ValueError, match="says why"):
        commands_of("<!-- commands: skip -->\n```console\n$ x\n```\n")


def test_a_node_and_a_make_target_are_recognised() -> None:
    start, make = commands_of("```console\n$ .venv/bin/stratalog start --data x\n$ make test\n```\n")
    assert start.starts_a_node
    assert start.make_target is None
    assert make.make_target == "test"


def test_a_cluster_is_a_node_but_not_its_parts() -> None:
    start, part, stop = commands_of(
        "```console\n$ s/stratalog cluster start\n$ stratalog cluster start --part n\n$ cluster stop\n```\n"
    )
    assert start.starts_a_node and not part.starts_a_node and not stop.starts_a_node
