"""A broker that ends itself (SIGKILL) after so many appends, as exactly as no other process could.

The order to die is a number in a file beside its data: how many more appends to any log it lives to
see. It is read when the first append comes after the file was made.
"""

from pathlib import Path

from support.broker_process import BrokerProcess

_SERVE = """
import os, signal, sys
from anabranch.log.partition_log import PartitionLog
from anabranch.server.run import run

order, left, real = {order!r}, None, PartitionLog.append

def append(log, batch, **how):
    global left
    if left is None and os.path.exists(order):
        left = int(open(order).read())
    if left is not None:
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
    return real(log, batch, **how)

PartitionLog.append = append
sys.exit(run(None, sys.argv[1:], False))
"""


class DyingBroker(BrokerProcess):
    """One broker, to which the order to die can be given while it runs."""

    def __init__(self, data_dir: Path, overrides: dict[str, str] | None = None) -> None:
        super().__init__(data_dir, overrides)
        self._order = data_dir.parent / f"{data_dir.name}.order"
        self.serve = _SERVE.format(order=str(self._order))

    def die_after(self, appends: int) -> None:
        """From the next append on it lives to see so many."""
        self._order.write_text(str(appends))

    def start(self) -> None:
        """Start without an order to die."""
        self._order.unlink(missing_ok=True)
        super().start()
