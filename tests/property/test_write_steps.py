"""Large writes in steps: nothing is lost, copied or put in another order, and no write is larger than a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.write_steps import in_steps


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    step_bytes=st.integers(1, 16),
    most_buffers=st.integers(1, 5),
    position=st.integers(0, 50),
)
def test_steps_are_the_same_bytes_in_order_and_end_at_multiples(
    sizes: list[int], step_bytes: int, most_buffers: int, position: int
) -> None:
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    steps = list(in_steps(buffers, step_bytes, most_buffers, position))
    assert b"".join(piece for step in steps for piece in step) == b"".join(buffers)
    for step in steps:
        end = position + sum(map(len, step))
        assert step
        assert len(step) <= most_buffers
        assert position // step_bytes == (end - 1) // step_bytes
        assert end % step_bytes == 0 or len(step) == most_buffers or step is steps[-1]
        position = end


def test_no_byte_is_copied() -> None:
    whole = bytearray(b"0123456789")
    steps = list(in_steps([memoryview(whole)], 4, 10))
    whole[:] = b"abcdefghij"
    assert [b"".join(step) for step in steps] == [b"abcd", b"efgh", b"ij"]
