"""Processes that can be interrupted, however the tests were started."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """What is started in here can be ended by SIGINT.

    A shell that starts something in the background has it ignore SIGINT, and what a process ignores
    its children ignore too: those of tests would never notice that they are interrupted. A signal
    that has a handler here is as usual in a child.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
