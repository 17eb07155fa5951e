"""What can go wrong between Spark and a broker, in words that name the option to change."""

from anabranch.model.errors import ErrorCode


class OptionError(ValueError):
    """An option, or a combination of options, that makes no sense."""


class LinkError(Exception):
    """A broker cannot be asked, or refused."""


class BrokerRefusal(LinkError):
    """A refusal by the broker, with Kafka's error code."""

    def __init__(self, code: int, what: str, message: str | None = None, sub_code: int = 0) -> None:
        try:
            known = ErrorCode(code)
        except ValueError:
            known = ErrorCode.UNKNOWN_SERVER_ERROR
            message = message or f"the broker answered with the unknown code {code}"
        super().__init__(f"{what} failed with {known.name}" + (f": {message}" if message else ""))
        self.code = known
        self.sub_code = sub_code


class LinkBrokenError(LinkError):
    """A broker cannot be reached, or a connection ended in the middle of a request."""


class LinkProtocolError(LinkError):
    """A broker answered with something that is no answer."""


class LinkTimeoutError(LinkError):
    """Something was tried for as long as an option allows, in vain."""


class DataLossError(Exception):
    """Records that the query has yet to read are gone; `failOnDataLoss` decides about it."""


def is_worth_retrying(error: LinkError) -> bool:
    """Whether a request that ended so may be answered when it is sent again."""
    if isinstance(error, BrokerRefusal):
        return error.code.retriable
    return isinstance(error, LinkBrokenError)
