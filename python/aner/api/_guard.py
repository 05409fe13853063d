"""What every request passes before the application sees it: host, key, size and time of the body, draining; and the log line after.

A request that gets through has its whole body in memory, at most ``max_body_bytes``, and a deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import time
from typing import Any

from aner.api._refusals import Refusal
from aner.api._service import Service

_logger = logging.getLogger("aner.api")

#: Answered without a key, and while the server drains.
_OPEN = frozenset({"/livez", "/readyz", "/health"})
_PAGE = "/"
_READ_ON_SECONDS = 2.0  # what a client that sends too much may still send, so that it sees the answer


class Guard:
    """An ASGI application around another."""

    def __init__(self, web: Any, service: Service) -> None:
        self._web = web
        self._service = service
        self._bounds = service.app.bounds
        self._keys = service.app.keys
        self._checks_host = service.app._is_local() and not self._keys
        self._names = {"localhost", service.app.host.lower(), *service.app.names}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._web(scope, receive, send)
        elif scope["type"] == "http":
            self._service.n_requests += 1
            try:
                await self._answer(scope, receive, send)
            finally:
                self._service.n_requests -= 1
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        arrived = time.monotonic()
        scope.setdefault("state", {})["deadline"] = arrived + self._bounds.timeout_ms / 1000
        status = 0

        async def counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            body = await self._admitted(scope, receive)
            if body is not None:
                receive = _replayed(body, receive)
            await self._web(scope, receive, counted)
        except _Gone:
            pass
        except Exception as error:
            refusal = self._service.refused(error)
            if not status:
                headers = refusal.raw_headers()
                if refusal.status in {408, 413, 431, 503}:
                    headers.append((b"connection", b"close"))
                await counted({"type": "http.response.start", "status": refusal.status, "headers": headers})
                await counted({"type": "http.response.body", "body": refusal.encoded()})
        finally:
            milliseconds = (time.monotonic() - arrived) * 1000
            _logger.info("%s %r %s %.1f ms", scope["method"], scope["path"][:200], status or "gone", milliseconds)

    async def _admitted(self, scope: Any, receive: Any) -> bytes | None:
        """The body, if the method has one; raises what the request is refused with."""
        headers = dict(scope["headers"])
        path = scope["path"]
        size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._bounds.max_header_bytes:
            raise Refusal(431, "header_too_large", f"a header may have at most {self._bounds.max_header_bytes} bytes")
        if self._checks_host:
            self._check_host(headers.get(b"host", b""))
        if self._keys and path not in _OPEN and path != _PAGE:
            self._check_key(headers.get(b"authorization", b""))
        if scope["method"] not in {"POST", "PUT", "PATCH", "DELETE"}:
            return None
        if self._service.draining:
            raise Refusal(503, "shutting_down", "the server is shutting down", headers={"Retry-After": "1"})
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal(415, "unsupported_media_type", "a body must not be compressed")
        body = await self._read(headers, receive)
        if body and headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise Refusal(415, "unsupported_media_type", "a body must be JSON, with the header Content-Type: application/json")
        return body

    def _check_host(self, host: bytes) -> None:
        """Refuse a name that is not this machine's: a page elsewhere could have pointed its own name here."""
        name = host.decode("latin-1").rpartition(":")[0] if host.rpartition(b":")[2].isdigit() else host.decode("latin-1")
        name = name.strip("[]").lower()
        if not name or name in self._names:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            message = "this server answers to localhost and addresses only: bind it with names=, or ask for API keys"
            raise Refusal(403, "host_not_allowed", message) from None

    def _check_key(self, header: bytes) -> None:
        scheme, _, key = header.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, one) for one in self._keys]  # all of them, whichever it is
        if scheme.lower() != b"bearer" or not any(matches):
            message = "this server asks for an API key: Authorization: Bearer KEY"
            raise Refusal(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})

    async def _read(self, headers: dict[bytes, bytes], receive: Any) -> bytes:
        bounds = self._bounds
        length = headers.get(b"content-length", b"0")
        announced = int(length) if length.isdigit() and len(length) < 20 else 0
        until = time.monotonic() + bounds.body_timeout_ms / 1000
        if announced > bounds.max_body_bytes:
            if b"expect" not in headers:
                await self._read_on(receive)
            raise self._too_large()
        chunks, size = [], 0
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.001, until - time.monotonic()))
            except asyncio.TimeoutError:
                message = f"the body did not arrive within {bounds.body_timeout_ms} ms"
                raise Refusal(408, "body_timeout", message, headers={"x-should-retry": "false"}) from None
            if message["type"] == "http.disconnect":
                raise _Gone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > bounds.max_body_bytes:
                await self._read_on(receive)
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self) -> Refusal:
        return Refusal(413, "body_too_large", f"a body may have at most {self._bounds.max_body_bytes} bytes")

    @staticmethod
    async def _read_on(receive: Any) -> None:
        """Throw away what still comes, for a moment: a client that is cut off while it sends does not see the answer."""
        until = time.monotonic() + _READ_ON_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                return
            if message["type"] == "http.disconnect":
                raise _Gone
            if not message.get("more_body", False):
                return


class _Gone(Exception):
    """The client went away before its request was whole."""


def _replayed(body: bytes, receive: Any) -> Any:
    given = False

    async def replay() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
