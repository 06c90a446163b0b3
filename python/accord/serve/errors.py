"""Errors that a client sees, as OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ApiError", "error_object", "invalid", "too_late", "unavailable"]

# OpenAI's types of errors by HTTP status.
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """Ends a request with an HTTP status and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = error_object(status, message, param, code)


def error_object(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def too_late(seconds: float) -> ApiError:
    return ApiError(504, f"the request took longer than {seconds:g} s", code="timeout")


def unavailable(message: str, seconds: int = 1) -> ApiError:
    """An error that a later try may not meet."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(seconds)})
