"""CRC-32C of the kernels, beside another implementation of it."""

import random

import crc32c
import pytest

from anabranch.branch import _kernels

DATA = random.Random(7).randbytes(300_000)


@pytest.mark.parametrize("begin", [0, 1, 7, 64])
def test_every_size_up_to_a_few_blocks(begin: int) -> None:
    """Short data, the edges of the wide steps, and what is left after them."""
    for size in range(2_100):
        part = DATA[begin : begin + size]
        assert _kernels.crc32c(part) == crc32c.crc32c(part), size


def test_sizes_of_batches() -> None:
    """What is large enough to go through the long loops many times."""
    dice = random.Random(11)
    for _ in range(200):
        begin = dice.randrange(1_000)
        part = DATA[begin : begin + dice.randrange(len(DATA) - 1_000)]
        assert _kernels.crc32c(part) == crc32c.crc32c(part), (begin, len(part))


def test_a_changed_bit_is_noticed_wherever_it_is() -> None:
    """No byte is left out."""
    part = DATA[:1_500]
    whole = _kernels.crc32c(part)
    for place in range(len(part)):
        changed = part[:place] + bytes([part[place] ^ 0x10]) + part[place + 1 :]
        assert _kernels.crc32c(changed) != whole, place
