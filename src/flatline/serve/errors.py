"""What goes wrong with a request, in the shape that OpenAI's clients read."""

from typing import Any

INVALID, OVERLOADED, FAILED = "invalid_request_error", "rate_limit_error", "server_error"


class RequestError(Exception):
    """A request that is not answered, and why."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def to_json(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def overloaded(waiting: int) -> RequestError:
    return RequestError(
        f"{waiting} turns wait already, and no more are let in.\n"
        "Try again in a moment with fewer requests at once, or start the server with a larger "
        "`--max-waiting`.",
        status=429,
        kind=OVERLOADED,
        code="queue_full",
    )


def wrong(name: str, value: Any, remedy: str) -> RequestError:
    return RequestError(f"`{name}` is {shown(value)}: {remedy}.", param=name)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
