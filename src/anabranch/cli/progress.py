"""Progress of long work: a bar on stderr, and only where a person looks at it."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

import click

_REDRAWS: Final = 200  # over the whole length; each costs a write to the terminal

Advance = Callable[[int], None]


@contextlib.contextmanager
def progress_bar(label: str, length: int, *, is_shown: bool = True) -> Iterator[Advance]:
    """A bar while the block runs; call what it gives with the steps done since the last call.

    Nothing is drawn when stderr is no terminal, when there is nothing to do, or unless `is_shown`.
    """
    if not is_shown or length <= 0 or not sys.stderr.isatty():
        yield no_progress
        return
    steps = max(1, length // _REDRAWS)
    with click.progressbar(
        length=length, label=label, file=sys.stderr, update_min_steps=steps
    ) as bar:
        try:
            yield bar.update
        finally:
            bar.update_min_steps = 1  # the last few steps are shown as well
            bar.update(0)


def no_progress(_: int) -> None:
    """Nobody looks."""
