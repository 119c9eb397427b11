"""What a request is refused for: one exception with HTTP's code, from which gRPC's follows - for all of serving."""

from __future__ import annotations

CODES = {
    400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""The name of gRPC's status for each HTTP status that is given here."""


class Refused(Exception):
    """A request that gets no result.

    Args:
        status: as HTTP has it. text: what is wrong and what would be right.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(text)


def bad(text: str) -> Refused:
    """The client's mistake."""
    return Refused(400, text)
