"""Why a group has to be assigned anew; the values are the labels that metrics have."""

from enum import Enum


class Cause(Enum):
    JOIN = "join"
    LEAVE = "leave"
    SESSION_EXPIRED = "session-expired"
    # A member did not give up, rejoin or ask for its assignment in time.
    REBALANCE_TIMEOUT = "rebalance-timeout"
    SUBSCRIPTION = "subscription"
    TOPICS = "topics"
    REGEX = "regex"
    ASSIGNOR = "assignor"
    # Ranges move between members that share, because of their load, or because a record is stuck.
    LOAD = "load"
    STUCK = "stuck"
    OTHER = "other"
