"""Judges what the members of a cooperative group told: was every key in order, and nothing lost?

    python -m anabranch.client.history FOLDER_OR_FILE... [--json]

Reads JSON lines, one event each, of all processes together; docs/reference/history.md says what
events there are and what is checked. `reading` makes of the events what each process had and did,
`rules` judges it.
"""

from anabranch.client.history.reading import Event, UnreadableHistory, load
from anabranch.client.history.rules import Verdict, check

__all__ = ["Event", "UnreadableHistory", "Verdict", "check", "load"]
