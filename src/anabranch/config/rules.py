"""The rules that values must keep, with the reasons in Kafka's words.

Clients and their users know these reasons from Kafka, and some tools match on them.
"""

from anabranch.config.setting import Rule, Value


def at_least(minimum: int) -> Rule:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        return f"Value must be at least {minimum}" if value < minimum else None

    return Rule(check, f"at least {minimum}")


def between(minimum: int, maximum: int) -> Rule:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < minimum:
            return f"Value must be at least {minimum}"
        return f"Value must be no more than {maximum}" if value > maximum else None

    return Rule(check, f"{minimum} to {maximum}")


def between_or(minimum: int, maximum: int, other: int) -> Rule:
    """A range, or one value outside it that has a meaning of its own."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int)
        if minimum <= value <= maximum or value == other:
            return None
        return f"Value must be between {minimum} and {maximum} or equal to {other}"

    return Rule(check, f"{minimum} to {maximum}, or {other}")


def at_least_or_unlimited(minimum: int) -> Rule:
    """A positive amount, or -1 for no limit."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int)
        if value == -1 or value >= minimum:
            return None
        return f"Value must be unlimited (-1) or at least {minimum}"

    return Rule(check, f"at least {minimum}, or -1 for no limit")


def one_of(*allowed: str) -> Rule:
    def check(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return Rule(check, ", ".join(f"`{name}`" for name in allowed))


def one_of_any_case(*allowed: str) -> Rule:
    """One of some words, however it is spelled; who reads the value lowers it."""

    def check(value: Value) -> str | None:
        assert isinstance(value, str)
        if value.lower() in allowed:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return Rule(check, ", ".join(f"`{name}`" for name in allowed) + " in any case")


def list_of(*allowed: str) -> Rule:
    """A list, possibly empty, of these words without repetition."""

    def check(value: Value) -> str | None:
        assert isinstance(value, tuple)
        for part in value:
            if part not in allowed:
                return f"String must be one of: {', '.join(allowed)}"
        return "values must not be duplicated" if len(set(value)) != len(value) else None

    return Rule(check, "any of " + ", ".join(f"`{name}`" for name in allowed))


def distinct(*, may_be_empty: bool) -> Rule:
    """A list of non-empty words without repetition."""

    def check(value: Value) -> str | None:
        assert isinstance(value, tuple)
        if not value and not may_be_empty:
            return "the list must not be empty"
        if "" in value:
            return "values must not be empty"
        return "values must not be duplicated" if len(set(value)) != len(value) else None

    return Rule(check, "no value twice" if may_be_empty else "at least one, no value twice")
