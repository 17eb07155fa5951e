"""The `anabranch` command: starts a broker, and talks to any Kafka broker as a client.

`main` is the entry point; a command's module is imported when that command is used, and heavy
libraries inside it, so that `anabranch --help` answers at once. What all commands share: flags
(`options`), the way to a broker (`connection`), how results are written (`output`) and how
failures are told (`errors`).
"""
