"""``App``: what is served, where, and within which bounds. Immutable; nothing runs before ``serve`` or ``running``."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aner.api._settings import (
    Limits,
    ServedPath,
    checked_origins,
    checked_tls,
    integer,
    kept_sessions,
    key_digests,
    served_path,
    text,
)
from aner.errors import ConfigurationError

if TYPE_CHECKING:
    from aner.llm import Model

__all__ = ["App"]


@dataclass(frozen=True, eq=False)
class App:
    """An application: every builder returns a new one, and refuses a wrong setting by name (ConfigurationError)."""

    name: str
    paths: tuple[ServedPath, ...] = ()
    host: str = "127.0.0.1"
    port: int = 11435
    names: tuple[str, ...] = ()
    bounds: Limits = field(default_factory=Limits)
    max_tokens: int = 256
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    certificate: str | None = None
    private_key: str | None = None
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        text("name", self.name)

    # -- builders ------------------------------------------------------------------------------------------------------------

    def llm(
        self,
        path: str,
        model: Model,
        *,
        alias: str | None = None,
        temperature: float = 0.0,
        workers: int = 1,
        description: str | None = None,
    ) -> App:
        """Serve ``model`` at ``path``, and under its alias at the OpenAI endpoints.

        model: an ordinary, latency or batching lease. The application takes siblings of it; it stays yours.
        alias: what OpenAI clients call it; by default from the model's name. temperature: of requests that give none.
        workers: requests of a lease without batching that run at a time; on a CPU their engine calls take turns.
        """
        new = served_path(path, model, alias, temperature, workers, description)
        for one in self.paths:
            if one.path == new.path:
                raise ConfigurationError(f"path {path!r} is served already: give each model a path of its own")
            if one.alias == new.alias:
                raise ConfigurationError(f"alias {new.alias!r} is taken by {one.path}: give each model one of its own")
        return replace(self, paths=(*self.paths, new))

    def sessions(self, path: str, model: Model, *, max_sessions: int = 4, idle_ms: int = 600_000) -> App:
        """Let ``path`` keep named conversations, made from ``model``: at most so many, each closed after so long without a turn."""
        if path not in [one.path for one in self.paths]:
            raise ConfigurationError(f"path {path!r:.100} is not served: call llm(path=...) first")
        kept = kept_sessions(model, max_sessions, idle_ms)
        return replace(self, paths=tuple(replace(one, sessions=kept) if one.path == path else one for one in self.paths))

    def bind(self, host: str = "127.0.0.1", port: int = 11435, *, names: Iterable[str] = ()) -> App:
        """Listen there; port 0: a free one.

        names: what clients may call this host, beside localhost and addresses. Only an application that this machine alone can reach,
        and that asks for no key, looks at it: a page elsewhere could otherwise point a name of its own here.
        """
        known = tuple(text("names", one).lower() for one in names)
        return replace(self, host=text("host", host), port=integer("port", port, 0, 65_535), names=known)

    def limits(self, **limits: int) -> App:
        """Change some of ``Limits``; what is not given stays."""
        try:
            return replace(self, bounds=replace(self.bounds, **limits))
        except TypeError:
            unknown = sorted(set(limits) - set(Limits.__dataclass_fields__))
            raise ConfigurationError(
                f"unknown limit {', '.join(unknown)}: the limits are {', '.join(Limits.__dataclass_fields__)}"
            ) from None

    def output_limit(self, max_tokens: int) -> App:
        """The most tokens that a request may ask for, and what one gets that asks for no number."""
        return replace(self, max_tokens=integer("max_tokens", max_tokens, 1, 2**24))

    def api_keys(self, *keys: str, file: str | os.PathLike[str] | None = None, environment: str | None = None) -> App:
        """Ask for one of these keys (``Authorization: Bearer``): given here, one a line in a file, or in a variable, with commas."""
        return replace(self, keys=key_digests(keys, file, environment))

    def tls(self, certificate: str | os.PathLike[str], private_key: str | os.PathLike[str]) -> App:
        """Serve HTTPS with this certificate (chain) and key, in PEM form."""
        both = checked_tls(certificate, private_key)
        return replace(self, certificate=both[0], private_key=both[1])

    def cors(self, *origins: str) -> App:
        """Let pages of these origins call the application from a browser; by default none may."""
        return replace(self, origins=checked_origins(origins))

    # -- running -------------------------------------------------------------------------------------------------------------

    def asgi(self) -> Any:
        """The ASGI application, for a server of your own; bounds on connections and headers are then that server's."""
        from aner.api._asgi import build

        return build(self._complete()).asgi

    def serve(self, *, ready: Callable[[str], object] | None = None) -> None:
        """Serve until SIGTERM or SIGINT: accepted work finishes within the drain time, then this returns.

        ready: called with the URL once it listens. OSError when the address cannot be had.
        """
        from aner.api._server import serve

        serve(self._complete(), ready)

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a background thread for the length of a ``with`` block, which gets the URL, without a slash at its end."""
        from aner.api._server import running

        with running(self._complete()) as url:
            yield url

    def _complete(self) -> App:
        if not self.paths:
            raise ConfigurationError("there is nothing to serve: call llm(path=..., model=...) first")
        return self

    def _is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
