"""Branches: one partition split by key-hash range, and what is derived from that.

Nothing here knows a file, a socket or a topic by name: bytes of batches go in, bytes and numbers
come out. Record-level work is compiled (`_kernels.c`) and runs without the interpreter's lock.
"""
