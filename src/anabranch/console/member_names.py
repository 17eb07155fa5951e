"""Short names of a group's members, with the whole id on hover."""

from markupsafe import Markup

from anabranch.broker.timeline_looks import who_is
from anabranch.console import words
from anabranch.coordinator.group.shard import Group


class MemberNames:
    """The names of one group's members, as they are now."""

    def __init__(self, group: Group | None) -> None:
        self._members = group.members if group is not None else {}

    def text(self, member_id: str) -> str:
        """The instance id, or the client id and the end of the member id."""
        member = self._members.get(member_id)
        return str(who_is(member)) if member is not None else member_id

    def cell(self, member_id: str | None) -> Markup | str:
        if member_id is None:
            return words.MISSING
        return Markup('<span title="{}">{}</span>').format(member_id, self.text(member_id))
