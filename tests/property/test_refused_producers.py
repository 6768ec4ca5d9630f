"""A correct producer with five batches under way, over refusals at any moment, lost answers and new lives of its node:
it gets no final error, and each of its batches is in the log once and in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.leading.producer_table import Duplicate, ProducerTable
from stratalog.machines.leading.rejected_batches import RejectedBatches

IN_FLIGHT = 5
PRODUCER = 7


class Node:
    """A shard, as far as it concerns a producer."""

    def __init__(self, *, is_known: bool) -> None:
        self.log: list[int] = []
        self.is_open = True
        self.table = ProducerTable()
        self.owed = RejectedBatches()
        self.now_ms = 0
        if is_known:
            self.table.record(PRODUCER, 0, 0, 1, 0, 0)

    def live_again(self) -> None:
        """The table comes back out of the log, what was refused is forgotten."""
        self.owed = RejectedBatches()

    def take(self, batch: OfferedBatch) -> bool:
        """Whether it is in the log now. What is not is refused for a moment."""
        self.now_ms += 1
        if not self.is_open:
            self.owed.refused([batch], self.now_ms)
            return False
        due, _ = self.owed.sort_out([batch], self.table, self.now_ms)
        if not due:
            return False
        verdict = self.table.check_sequence(PRODUCER, 0, batch.base_sequence, batch.record_count)
        if not isinstance(verdict, Duplicate):
            assert verdict is None, f"sequence {batch.base_sequence} is told {verdict}, the log has {self.log}"
            self.table.record(PRODUCER, 0, batch.base_sequence, batch.record_count, len(self.log), self.now_ms)
            self.log.append(batch.base_sequence)
        return True


arrivals = st.lists(
    st.sampled_from(["taken", "taken", "answer lost", "closed before", "opened before", "node dies"]), max_size=120
)


@settings(max_examples=300, deadline=None)
@given(arrivals, st.booleans())
def test_a_correct_producer_is_never_out_of_order(events: list[str], is_known: bool) -> None:
    """Batches without an answer are sent again, oldest first, on one connection: those behind a refused batch arrive
    anyway."""
    node = Node(is_known=is_known)
    first = acknowledged = 1 if is_known else 0
    script = iter(events)
    for _ in range(len(events) // IN_FLIGHT + 1):
        answered = []
        for sequence in range(acknowledged, acknowledged + IN_FLIGHT):
            event = next(script, "opened before")
            if event == "node dies":
                node.live_again()
                break
            if event.endswith("before"):
                node.is_open = event == "opened before"
            is_in = node.take(OfferedBatch(b"", 1, 1, 0, PRODUCER, 0, sequence, -1, None, None))
            answered.append(is_in and event != "answer lost")
        while answered and answered.pop(0):
            acknowledged += 1
    assert node.log == list(range(first, first + len(node.log)))
    assert acknowledged <= first + len(node.log)
