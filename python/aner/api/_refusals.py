"""Every answer that is not a success: its status, its stable code, and the body that OpenAI clients understand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from aner import errors
from aner.errors import HTTP_STATUS, AnerError

#: The code in the body, by exception; a subclass without a line of its own has its base's.
CODES: dict[type[AnerError], str] = {
    AnerError: "internal_error",
    errors.InvalidRequestError: "invalid_request",
    errors.ContextFullError: "context_length_exceeded",
    errors.TemplateError: "template_error",
    errors.ConfigurationError: "internal_error",
    errors.UnsupportedOperationError: "unsupported_operation",
    errors.DeviceUnavailableError: "device_unavailable",
    errors.OutOfMemoryError: "out_of_memory",
    errors.BusyError: "busy",
    errors.ReentrantRequestError: "reentrant_request",
    errors.ClosedError: "shutting_down",
    errors.CancelledError: "cancelled",
    errors.RequestTimeoutError: "timeout",
    errors.EngineError: "engine_error",
}

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """An answer that is not a success."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        if status == 504:
            self.headers.setdefault("x-should-retry", "false")  # OpenAI clients would ask again for what took too long

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        return encode(self.body())

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        found = {**self.headers, "content-type": "application/json", "content-length": str(len(self.encoded()))}
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in found.items()]


def refusal_of(error: Exception, retry_after: float = 1.0) -> Refusal:
    """The answer for what went wrong; of an error that aner does not raise on purpose, nothing is told."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, AnerError):
        return Refusal(500, "internal_error", "the server failed in a way that it should not; its log has more")
    status = next(HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS)
    code = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    headers = {"Retry-After": str(max(1, math.ceil(retry_after)))} if status in {429, 503} else {}
    return Refusal(status, code, str(error), headers=headers)


def encode(value: object) -> bytes:
    """JSON as it is sent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
