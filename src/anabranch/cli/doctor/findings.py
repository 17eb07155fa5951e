"""What a check found: how bad it is, what it is, why it matters, what to do next."""

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How bad it is. Skipped: it could not be looked at, and why is told."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    check: str
    status: Status
    subject: str | None = None  # the group, topic, folder and so on; None: the whole
    what: str
    why: str | None = None
    next_step: str | None = None

    @property
    def sentence(self) -> str:
        return self.what if self.why is None else f"{self.what} - {self.why}"


def ok(check: str, what: str, subject: str | None = None) -> Finding:
    return Finding(check=check, status=Status.OK, subject=subject, what=what)


def skipped(check: str, why: str, next_step: str | None = None) -> Finding:
    return Finding(
        check=check, status=Status.SKIPPED, what="not looked at", why=why, next_step=next_step
    )


def warning(
    check: str, subject: str | None, what: str, *, why: str | None, next_step: str
) -> Finding:
    return Finding(
        check=check,
        status=Status.WARNING,
        subject=subject,
        what=what,
        why=why,
        next_step=next_step,
    )


def problem(
    check: str, subject: str | None, what: str, *, why: str | None, next_step: str
) -> Finding:
    return Finding(
        check=check,
        status=Status.PROBLEM,
        subject=subject,
        what=what,
        why=why,
        next_step=next_step,
    )


def found_or_ok(found: list[Finding], check: str, what: str) -> list[Finding]:
    """What was found, or one line that says that nothing was."""
    return found or [ok(check, what)]
