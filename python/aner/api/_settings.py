"""What an application is made of, checked when it is built: a wrong setting is refused by its name."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aner.errors import ConfigurationError

if TYPE_CHECKING:
    from aner.llm import Model

__all__ = ["Limits"]

#: Requests that may wait for a path; the scheduler of a batching lease has the same bound.
MAX_WAITING = 8

_DAY_MS = 86_400_000
_RANGES = {
    "max_rows": (1, 1024),
    "timeout_ms": (1, _DAY_MS),
    "max_connections": (1, 65_536),
    "max_body_bytes": (1024, 2**30),
    "max_header_bytes": (1024, 2**20),
    "header_timeout_ms": (1, _DAY_MS),
    "body_timeout_ms": (1, _DAY_MS),
    "drain_timeout_ms": (0, _DAY_MS),
}
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_ALIAS = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d+)?|https?://\[[0-9A-Fa-f:]+\](?::\d+)?")
_KEY = re.compile(r"[\x21-\x7e]{8,512}")

#: Paths that belong to the application itself.
RESERVED = ("/v1", "/tokenize", "/detokenize", "/livez", "/readyz", "/health", "/metrics", "/aner", "/openapi.json", "/docs")


@dataclass(frozen=True)
class Limits:
    """What a client may take up; everything beyond is refused before any work.

    max_rows: messages of a request, or prompts times answers of one. timeout_ms: from the arrival of a request to its answer's end,
    waiting included. max_connections: open at a time. max_body_bytes, max_header_bytes: of one request. header_timeout_ms,
    body_timeout_ms: for sending them. drain_timeout_ms: what accepted work gets after SIGTERM.
    """

    max_rows: int = 64
    timeout_ms: int = 120_000
    max_connections: int = 128
    max_body_bytes: int = 2 * 2**20
    max_header_bytes: int = 16 * 1024
    header_timeout_ms: int = 10_000
    body_timeout_ms: int = 10_000
    drain_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(field.name, getattr(self, field.name), *_RANGES[field.name])


@dataclass(frozen=True, eq=False)
class Sessions:
    """Conversations that a path keeps: the lease that they are made from, how many, how long an idle one stays."""

    model: Model
    max_sessions: int
    idle_ms: int


@dataclass(frozen=True, eq=False)
class ServedPath:
    """One path and the model behind it."""

    path: str
    model: Model
    alias: str
    temperature: float
    workers: int
    description: str
    sessions: Sessions | None = None


def integer(name: str, value: Any, least: int, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise ConfigurationError(f"{name} must be an integer within {least}..{largest}, it is {value!r:.100}")
    return value


def text(name: str, value: Any, pattern: re.Pattern[str] | None = None, wanted: str = "text") -> str:
    if not isinstance(value, str) or not value.strip() or (pattern is not None and not pattern.fullmatch(value)):
        raise ConfigurationError(f"{name} must be {wanted}, it is {value!r:.100}")
    return value


def served_path(path: Any, model: Any, alias: Any, temperature: Any, workers: Any, description: Any) -> ServedPath:
    """The checked settings of ``App.llm``."""
    from aner.llm import Model

    text("path", path, _PATH, "a path such as '/chat', of letters, digits and . _ ~ -, without a slash at its end")
    if any(path == one or path.startswith(one + "/") for one in RESERVED):
        raise ConfigurationError(f"path is {path!r}, which belongs to the application itself: take another")
    if not isinstance(model, Model) or not model.supports("generate"):
        raise ConfigurationError(f"model must be an open lease from aner.llm, it is {model!r:.100}")
    facts = model.metadata()
    if alias is None:
        alias = (
            re.sub(r"[^\w.:/@+-]+", "-", str(facts["name"] or facts["architecture"]).lower(), flags=re.ASCII).strip("-")
            or "model"
        )
    text("alias", alias, _ALIAS, "1 to 128 letters, digits and . : / @ + - _")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature <= 100:
        raise ConfigurationError(f"temperature must be a number within 0..100, it is {temperature!r:.100}")
    if temperature and model.supports("speculation"):
        raise ConfigurationError(
            f"temperature is {temperature}: a model with speculation serves greedy requests only, so it must be 0"
        )
    integer("workers", workers, 1, 64)
    if workers > 1 and model.supports("continuous_batching"):
        raise ConfigurationError(f"workers is {workers}: a batching model has one for each of its slots already, leave it out")
    if description is None:
        description = f"{facts['name'] or facts['architecture']} on {model.device()}"
    return ServedPath(path, model, alias, float(temperature), workers, text("description", description))


def kept_sessions(model: Any, max_sessions: Any, idle_ms: Any) -> Sessions:
    """The checked settings of ``App.sessions``."""
    from aner.llm import Model

    if not isinstance(model, Model) or not model.supports("session"):
        raise ConfigurationError(
            f"the model of sessions must support them (model.supports('session')), and {model!r:.100} does not: take a lease that is "
            "open, does not batch, and has a chat template"
        )
    integer("max_sessions", max_sessions, 1, 64)
    integer("idle_ms", idle_ms, 1, _DAY_MS)
    return Sessions(model, max_sessions, idle_ms)


def key_digests(keys: Iterable[Any], file: Any, environment: Any) -> tuple[bytes, ...]:
    """SHA-256 of every key; a key itself is kept nowhere and stands in no message."""
    found: list[tuple[str, str]] = [("a key", key) for key in keys]
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except (OSError, TypeError, ValueError) as error:
            raise ConfigurationError(f"api_keys file {str(file)!r:.200} cannot be read: {type(error).__name__}") from None
        found += [("a line of the file of api_keys", one.strip()) for one in lines if one.strip() and not one.startswith("#")]
    if environment is not None:
        value = os.environ.get(text("environment", environment, wanted="the name of a variable"), "")
        found += [(f"a key in {environment}", one.strip()) for one in value.split(",") if one.strip()]
    if not found:
        raise ConfigurationError("api_keys found no key: give one, a file with one in each line, or a variable that is set")
    for place, key in found:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ConfigurationError(f"{place} is not 8 to 512 printable ASCII characters without spaces")
    return tuple(dict.fromkeys(hashlib.sha256(key.encode()).digest() for _, key in found))


def checked_tls(certificate: Any, private_key: Any) -> tuple[str, str]:
    files = []
    for name, value in (("certificate", certificate), ("private_key", private_key)):
        if not isinstance(value, (str, os.PathLike)) or not Path(value).is_file():
            raise ConfigurationError(f"{name} must be a file in PEM form, it is {value!r:.200}")
        files.append(os.fspath(value))
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(files[0], files[1], password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(f"certificate and private_key do not work together: {error}") from None
    return files[0], files[1]


def checked_origins(origins: Iterable[Any]) -> tuple[str, ...]:
    return tuple(text("an origin", one, _ORIGIN, "such as 'https://example.org', without a path") for one in origins)
