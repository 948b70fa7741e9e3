"""Revisions drawn in blocks."""

from __future__ import annotations

import os
import threading
from itertools import count

import pytest

from threadmill_sa.model.limits import REVISION_BLOCK
from threadmill_sa.stores.sql.numbering import RevisionBlocks


class Sequence:
    """Draws like the database: the first number of a block that nobody else gets."""

    def __init__(self) -> None:
        self._blocks = count(1)
        self.draws = 0

    def __call__(self) -> int:
        self.draws += 1
        return next(self._blocks) * REVISION_BLOCK


def test_a_block_serves_a_thousand_nudges_with_one_draw() -> None:
    blocks, draw = RevisionBlocks(), Sequence()

    revisions = [blocks.next(draw) for _ in range(REVISION_BLOCK)]

    assert revisions == list(range(REVISION_BLOCK, 2 * REVISION_BLOCK))
    assert draw.draws == 1
    assert blocks.next(draw) == 2 * REVISION_BLOCK
    assert draw.draws == 2


def test_no_revision_is_given_twice_to_threads_that_share_the_blocks() -> None:
    blocks, draw = RevisionBlocks(), Sequence()
    given: list[int] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait(10)
        given.extend([blocks.next(draw) for _ in range(700)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(given) == len(set(given)) == 8 * 700


def test_the_lock_is_free_while_a_block_is_drawn() -> None:
    blocks, draw = RevisionBlocks(), Sequence()

    def draw_slowly() -> int:
        # Another producer gets its own block meanwhile: nobody waits for anybody's statement.
        assert blocks.next(draw) == REVISION_BLOCK
        return draw()

    assert blocks.next(draw_slowly) == 2 * REVISION_BLOCK


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_draws_its_own_block() -> None:
    blocks, draw = RevisionBlocks(), Sequence()
    blocks.next(draw)
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        os.write(writer, str(blocks.next(lambda: 77 * REVISION_BLOCK)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)

    with os.fdopen(reader) as pipe:
        assert int(pipe.read()) == 77 * REVISION_BLOCK
