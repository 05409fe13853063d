"""Running an application on uvicorn: the listening socket, bounds on connections and headers, draining on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aner.api._app import App
from aner.api._asgi import Built, built
from aner.api._refusals import Refusal

_logger = logging.getLogger("aner.api")
_HEALTH = frozenset({"/livez", "/readyz", "/health"})
_CANCEL_SECONDS = 5.0  # for cancelled work to end, after the drain time
_LINGER_SECONDS = 10.0  # for a closed connection's last bytes to be read
_KEEP_ALIVE_SECONDS = 15


def serve(app: App, ready: Callable[[str], object] | None) -> None:
    with _listening(app) as (listener, url), built(app) as made:
        server = _Server(app, made)
        if not app.keys and not app._is_local():
            _logger.warning("serving on %s without API keys: whoever reaches it can use it", url)
        if ready is not None:
            ready(url)
        _logger.info("serving on %s", url)
        asyncio.run(server.serve(sockets=[listener]))


@contextlib.contextmanager
def running(app: App) -> Iterator[str]:
    with _listening(app) as (listener, url), built(app) as made:
        server = _Server(app, made)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(server.serve(sockets=[listener]))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="aner-api", daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.002)
        try:
            if not server.started:
                raise RuntimeError("the server did not start") from (failures[0] if failures else None)
            yield url
        finally:
            server.stop()
            thread.join()
        if failures:
            raise failures[0]


@contextlib.contextmanager
def _listening(app: App) -> Iterator[tuple[socket.socket, str]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(app.host, app.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio turns off the delay of small packets only where it sees that this is TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {app.host} port {app.port}: {error.strerror or error}") from None
    with listener:
        host, port = listener.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        yield listener, f"{'https' if app.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """Stops in two steps: refuses new work while what was accepted finishes; then closes."""

    def __init__(self, app: App, made: Built) -> None:
        super().__init__(
            uvicorn.Config(
                made.asgi,
                loop="asyncio",
                http=_protocol(app),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=app.bounds.max_header_bytes,
                ssl_certfile=app.certificate,
                ssl_keyfile=app.private_key,
            )
        )  # fmt: skip
        self._service = made.service
        self._drain_seconds = app.bounds.drain_timeout_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # A thread for every lease that may be at work, and some for the tokenizer: none of them waits for another.
        n_threads = 8 + sum(one.workers + 1 for one in self._service.app.paths)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(n_threads, thread_name_prefix="aner-api"))
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain; a second one cancels. The process then ends by itself, with 0."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """From any thread: drain; when it drains already, cancel."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._drained is None:
            self._service.draining = True
            self._drained = asyncio.ensure_future(self._drain())
        else:
            self._drain_seconds = 0.0

    async def _drain(self) -> None:
        began = time.monotonic()
        _logger.info("draining: %d requests to finish", self._service.n_requests)
        while self._service.n_requests and time.monotonic() - began < self._drain_seconds:
            await asyncio.sleep(0.02)
        self._service.cancel_all()
        until = time.monotonic() + _CANCEL_SECONDS
        while self._service.n_requests and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.should_exit = True


def _protocol(app: App) -> type[H11Protocol]:
    bounds = app.bounds

    class Protocol(H11Protocol):
        """A connection: refused when there are too many, closed when a header takes too long or an answer is not read."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._header_timer: asyncio.TimerHandle | None = None
            self._has_begun = False
            if len(self.connections) > 2 * bounds.max_connections:
                transport.abort()
            elif len(self.connections) > bounds.max_connections:
                self.app = _crowded(self.app)
            self._watch_header()

        def data_received(self, data: bytes) -> None:
            self._has_begun = True
            super().data_received(data)
            self._watch_header()

        def handle_events(self) -> None:
            super().handle_events()
            if self.scope is not None:
                scope: dict[str, Any] = self.scope  # type: ignore[assignment]
                scope.setdefault("extensions", {})["aner.abort"] = self.transport.abort

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._linger()

        def shutdown(self) -> None:
            super().shutdown()
            self._linger()

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal(400, "bad_http", "this is not a valid HTTP request, or its header is too large"))

        def _watch_header(self) -> None:
            """The time for a header runs whenever no request is being answered."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()
            elif self._header_timer is None and not self.transport.is_closing():
                self._header_timer = self.loop.call_later(bounds.header_timeout_ms / 1000, self._header_is_late)

        def _stop_timer(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _header_is_late(self) -> None:
            self._header_timer = None
            if self._has_begun:
                self._refuse(Refusal(408, "header_timeout", f"the header did not arrive within {bounds.header_timeout_ms} ms"))
            else:
                self.transport.close()
                self._linger()

        def _refuse(self, refusal: Refusal) -> None:
            if not self.transport.is_closing() and self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                headers = [*refusal.raw_headers(), (b"connection", b"close")]
                for event in (
                    h11.Response(status_code=refusal.status, headers=headers),
                    h11.Data(data=refusal.encoded()),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
            self._linger()

        def _linger(self) -> None:
            if self.transport.is_closing():
                self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    return Protocol


def _crowded(app: Any) -> Any:
    """Health is still answered to a connection that is one too many; everything else is busy."""

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in _HEALTH:
            await app(scope, receive, send)
            return
        refusal = Refusal(429, "too_many_connections", "too many connections are open: try again", headers={"Retry-After": "1"})
        headers = [*refusal.raw_headers(), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.encoded()})

    return busy
