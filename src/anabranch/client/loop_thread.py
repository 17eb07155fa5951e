"""An event loop in a thread of its own, for programs that have none."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from anabranch.client.errors import ConsumerClosedError, ConsumerStateError

T = TypeVar("T")


class LoopThread:
    """Runs until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.is_stopped = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T], who: str = "consumer") -> T:
        """What becomes of the work, which is done in the thread."""
        if self.is_stopped:
            work.close()
            raise ConsumerClosedError(f"the {who} is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise ConsumerStateError(f"a callback must not call methods of the {who} that wait")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the loop and the thread."""
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
