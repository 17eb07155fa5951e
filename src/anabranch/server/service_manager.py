"""Telling a service manager how things are (systemd's sd_notify protocol)."""

import contextlib
import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_service_manager(state: str) -> None:
    """Send a state to whoever started us, if it wants to know."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    # A name in the abstract namespace is written with an @.
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(state.encode(), address)
