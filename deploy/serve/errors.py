"""What a request can be answered with when it is not answered with a result."""

from __future__ import annotations


class RequestError(Exception):
    """A request that cannot be served: the HTTP status and a sentence for the client."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class QueueFullError(RequestError):
    """The model's queue is at its limit."""

    def __init__(self, name: str, limit: int):
        super().__init__(
            f"the queue of model '{name}' is full ({limit} requests wait); try again later", 503
        )


class TimeoutPassedError(RequestError):
    """The request waited or ran for longer than the server allows."""

    def __init__(self, seconds: float, state: str):
        super().__init__(f"the time-out of {seconds:g} s passed while the request {state}", 504)


class TooLittleMemoryError(RequestError):
    """The process has no memory for this request now."""

    def __init__(self, reason: str = ""):
        told = f" ({reason})" if reason else ""
        super().__init__(f"there is too little memory for these inputs{told}; try again later", 503)


class TooMuchHeldError(RequestError):
    """Other requests and answers use all the memory that the process may hold for them."""

    def __init__(self) -> None:
        super().__init__(
            "the server holds as many bytes of requests and answers as it may; try again later", 503
        )


class SchedulerClosedError(Exception):
    """The model was replaced or unloaded between look-up and submission: look it up again."""
