"""What goes wrong when a journal is read."""


class JournalError(ValueError):
    """Bytes in an internal topic that are not the record they claim to be."""
