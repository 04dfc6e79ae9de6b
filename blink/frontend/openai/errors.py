"""Errors as clients of the OpenAI API expect them: a status, and a body of one form."""

from __future__ import annotations

import msgspec

MESSAGE_CHARACTERS_MAX = 400


class ApiError(Exception):
    """What is wrong with a request, for its client. `retry_after_s` becomes the header Retry-After."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON body; its message is bounded, whatever the client sent."""
        message = str(self)
        if len(message) > MESSAGE_CHARACTERS_MAX:
            message = message[: MESSAGE_CHARACTERS_MAX - 3] + "..."
        error = {"message": message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client did something wrong."""
    return ApiError(400, message, param=param, code=code)


def model_not_found(name: str) -> ApiError:
    """404: a model that this server does not have."""
    return ApiError(404, f"The model `{name}` does not exist.", param="model", code="model_not_found")


def too_many(open_count: int) -> ApiError:
    """429: as many requests are open as may be."""
    message = f"{open_count} requests are open; no more are taken in now"
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after_s=1)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """503: not now."""
    return ApiError(
        503, message, kind="service_unavailable_error", code="service_unavailable", retry_after_s=retry_after_s
    )


def internal(message: str) -> ApiError:
    """500, or an error inside a stream."""
    return ApiError(500, message, kind="server_error", code="internal_error")
