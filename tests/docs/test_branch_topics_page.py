"""The guide's test vectors are what the broker does: other programs are written by them."""

from pathlib import Path

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import branch_of_slot, slot_of_key, slot_of_offset

PAGE = Path(__file__).parents[2] / "docs" / "branch-topics.md"

KEYS = {
    "(empty)": b"",
    "`a`": b"a",
    "`order-1`": b"order-1",
    "`Zürich` in UTF-8": "Zürich".encode(),
    "the bytes 00 to 1f": bytes(range(32)),
    "1 MiB of zero bytes": bytes(1024 * 1024),
}


def _rows(first_header: str) -> list[list[str]]:
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_keys() -> None:
    """Every key of the table has the hash, the slot and the ranges that are printed."""
    rows = _rows("key")
    assert [row[0] for row in rows] == list(KEYS)
    for name, *printed in rows:
        key = KEYS[name]
        slot = slot_of_key(key)
        assert printed == [
            f"`{xxh64(key):016x}`",
            str(xxh64(key) >> 1),
            str(slot),
            str(branch_of_slot(slot, 8)),
            str(branch_of_slot(slot, 24)),
        ]


def test_records_without_a_key() -> None:
    """Blocks of 64 offsets share a slot."""
    rows = _rows("offset of a record without a key")
    assert rows == [[str(offset), str(slot_of_offset(offset))] for offset in (0, 63, 64, 6400)]
