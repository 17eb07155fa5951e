"""Runs the shell commands of a page, one after the other in one shell, as a reader would.

A page's commands are its ```sh blocks; a ```text block right after one is what it prints, where
`...` stands for anything, and a line of `...` alone for any number of lines. Three things differ
from a reader's terminal: `make run` starts the broker on free ports and goes on; the session of a
member is short; and what CI runs anyway (`make test`) or has a test of its own (`make demo`) is
only checked to be there.
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "@@@ block"
_LIMIT_S = 540

_PRELUDE = r"""
set -euo pipefail
make() {
  case "$1" in
    run)
      .venv/bin/anabranch serve --override "listeners=PLAINTEXT://$ANABRANCH_BOOTSTRAP_SERVER" \
        --override console.listeners=localhost:0 --consumer-session-timeout-ms 6000 \
        > broker.log 2>&1 &
      until grep -qs "settings " broker.log; do
        kill -0 $! || { cat broker.log; return 1; }
        sleep 0.1
      done
      cat broker.log ;;
    *) command make -C "$PROJECT" -n "$1" > /dev/null ;;
  esac
}
"""


@dataclass(frozen=True)
class Block:
    """The commands of one block, and what they print if the page says so."""

    commands: str
    expected: str | None


def blocks_of(page: Path) -> list[Block]:
    fences = list(_FENCE.finditer(page.read_text(encoding="utf-8")))
    found = []
    for number, fence in enumerate(fences):
        if fence[1] != "sh":
            continue
        follower = fences[number + 1] if number + 1 < len(fences) else None
        expected = follower[2] if follower is not None and follower[1] == "text" else None
        found.append(Block(fence[2], expected))
    return found


def run_blocks(blocks: list[Block], folder: Path, port: int) -> tuple[int, list[str]]:
    """The exit code of the shell, and what each block printed that was begun."""
    for name in (".venv", "examples"):
        (folder / name).symlink_to(ROOT / name)
    script = _PRELUDE
    for block in blocks:
        script += f"\necho '{_MARK}'\n{block.commands}\n"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PROJECT": str(ROOT),
        "ANABRANCH_BOOTSTRAP_SERVER": f"localhost:{port}",
    }
    output = folder / "output.txt"
    with output.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            # The broker and workers that the page leaves running are of the shell's session.
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = output.read_text(encoding="utf-8").replace(f":{port}", ":9092")
    text = re.sub(r"(console +http://localhost):\d+", r"\1:8080", text)
    return code, text.split(_MARK + "\n")[1:]


def is_printed(expected: str, printed: str) -> bool:
    """Whether output is what a page says, whatever the width of its columns."""
    pattern = "".join(map(_line_pattern, expected.strip().splitlines()))
    text = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern + r"(?:.*\n)*", text) is not None


def _line_pattern(line: str) -> str:
    words = " ".join(line.split())
    if words == "...":
        return r"(?:.*\n)*?"
    parts = [re.escape(part.strip()) for part in words.split("...")]
    return r"\s*.*?\s*".join(parts) + r" *\n"
