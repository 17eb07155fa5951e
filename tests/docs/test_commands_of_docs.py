"""Every command of README and tutorial is run, and prints what the page says."""

import socket
from pathlib import Path

import pytest
from doc_commands import ROOT, blocks_of, is_printed, run_blocks

# The examples that bring a broker of their own take a free port; all else goes to this one.
PAGES = ("README.md", "docs/tutorial.md")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(page: str, tmp_path: Path) -> None:
    """Each block ends without an error, and prints what stands below it."""
    blocks = blocks_of(ROOT / page)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    assert blocks[0].commands.startswith("make run"), "the first thing is a broker"
    code, printed = run_blocks(blocks, tmp_path, port)
    report = "\n---\n".join(printed)
    assert code == 0, f"block {len(printed)} failed:\n{report}"
    for block, text in zip(blocks, printed, strict=True):
        if block.expected is not None:
            assert is_printed(block.expected, text), f"expected:\n{block.expected}\ngot:\n{text}"


@pytest.mark.parametrize(
    ("expected", "printed", "is_right"),
    [
        ("A  B\n1  2", "A   B\n1   2\n", True),
        ("A ...\n...\nz", "A rest\nx\ny\nz\n", True),
        ("...\nz", "z\n", True),
        ("A", "A\nmore\n", True),
        ("A\nB", "A\n", False),
        ("A ... C", "A B\n", False),
        ("a.b", "axb\n", False),
    ],
)
def test_what_is_printed_is_compared(expected: str, printed: str, is_right: bool) -> None:
    """Columns may be wider; dots stand for anything, and nothing else does."""
    assert is_printed(expected, printed) is is_right
