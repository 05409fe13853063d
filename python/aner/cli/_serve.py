"""``aner serve``: a model behind HTTP."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from aner.cli._output import note
from aner.cli._parameters import LoadOptions, ModelPath, ProfileOptions, option, with_groups
from aner.errors import ConfigurationError

_serve = functools.partial(option, panel="Serving")
_bounds = functools.partial(option, panel="Bounds")
_security = functools.partial(option, panel="Security")


@dataclasses.dataclass(frozen=True)
class ServingOptions:
    """What is served, and where."""

    host: Annotated[str, _serve("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _serve("The port; 0: a free one.")] = 11435
    path: Annotated[str, _serve("The path of the model.")] = "/chat"
    alias: Annotated[str | None, _serve("What OpenAI clients call it; from its name, if not given.", show_default=False)] = None
    name: Annotated[str, _serve("The application's name.")] = "aner"
    max_sequences: Annotated[int, _serve("Requests that run together, in one batch; 0: no batching.")] = 0
    step_target_ms: Annotated[float, _serve("While answers are written, a step takes prompts for this long; 0: no bound.")] = (
        250.0
    )
    workers: Annotated[int, _serve("Without batching: requests that take turns at the engine.")] = 1
    temperature: Annotated[float, _serve("Of requests that give none.")] = 0.0
    max_sessions: Annotated[int, _serve("Conversations that are kept; 0: none.")] = 0
    session_idle_ms: Annotated[int, _serve("A conversation is closed after so long without a turn.")] = 600_000


@dataclasses.dataclass(frozen=True)
class BoundOptions:
    """``App.limits`` and ``App.output_limit``."""

    max_tokens: Annotated[int, _bounds("Most tokens of an answer.")] = 256
    max_rows: Annotated[int, _bounds("Most messages, or prompts, of a request.")] = 64
    timeout_ms: Annotated[int, _bounds("Time of a request, waiting included.")] = 120_000
    max_connections: Annotated[int, _bounds("Connections open at a time.")] = 128
    max_body_bytes: Annotated[int, _bounds("Size of a request's body.")] = 2 * 2**20
    max_header_bytes: Annotated[int, _bounds("Size of a request's header.")] = 16 * 1024
    header_timeout_ms: Annotated[int, _bounds("Time for sending the header.")] = 10_000
    body_timeout_ms: Annotated[int, _bounds("Time for sending the body.")] = 10_000
    drain_timeout_ms: Annotated[int, _bounds("Time of accepted requests after SIGTERM.")] = 30_000

    def limits(self) -> dict[str, int]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "max_tokens"}


@dataclasses.dataclass(frozen=True)
class SecurityOptions:
    """Who may use it."""

    api_key_file: Annotated[
        Path | None, _security("Ask for one of these keys, one a line.", metavar="FILE", show_default=False)
    ] = None
    api_key_variable: Annotated[
        str | None, _security("Ask for a key of this variable, with commas.", metavar="NAME", show_default=False)
    ] = None
    tls_certificate: Annotated[Path | None, _security("Serve HTTPS: the chain.", metavar="FILE", show_default=False)] = None
    tls_private_key: Annotated[Path | None, _security("Its private key.", metavar="FILE", show_default=False)] = None
    cors_origin: Annotated[
        list[str] | None, _security("Pages of this origin may call it. May be repeated.", metavar="URL", show_default=False)
    ] = None
    host_name: Annotated[
        list[str] | None, _security("What clients call this host, beside localhost.", metavar="NAME", show_default=False)
    ] = None


#: What TOML must give for an option whose default is of this type.
_KINDS: dict[type, tuple[Any, str]] = {
    int: (int, "an integer"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}


def _default_types() -> dict[str, type]:
    groups = (LoadOptions, ProfileOptions, ServingOptions, BoundOptions, SecurityOptions)
    return {field.name: type(field.default) for group in groups for field in dataclasses.fields(group)}


def _configured(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the settings of the file the defaults of the command line."""
    if path is None:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="--config") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not TOML: {error}", param_hint="--config") from None
    known = {str(one.name) for one in ctx.command.params} - {"config", "help"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise typer.BadParameter(f"unknown setting {', '.join(unknown)} in {path}", param_hint="--config")
    for name, value in settings.items():
        kind, wanted = _KINDS.get(_default_types().get(name, object), (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise typer.BadParameter(f"{name} in {path} must be {wanted}, it is {value!r:.100}", param_hint="--config")
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(one, (Mapping, list)) for one in value)):
            raise typer.BadParameter(f"{name} in {path} must be a single value, or a list of them", param_hint="--config")
    ctx.default_map = {**(ctx.default_map or {}), **settings}
    return path


@with_groups
def serve(
    model: ModelPath,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", callback=_configured, is_eager=True, show_default=False,
            help="Settings as TOML, by the names of these options with _ for -; the command line wins.",
        ),
    ] = None,
    load: LoadOptions,
    profile: ProfileOptions,
    serving: ServingOptions,
    bounds: BoundOptions,
    security: SecurityOptions,
) -> None:  # fmt: skip
    """Serve a model over HTTP: /chat, endpoints for OpenAI clients, a page, health, metrics.

    SIGTERM, or Ctrl-C, lets accepted requests finish; a second one does not.
    """
    from aner import api

    app = api.app(serving.name).limits(**bounds.limits()).output_limit(bounds.max_tokens)
    app = app.bind(serving.host, serving.port, names=security.host_name or ())
    if security.api_key_file is not None or security.api_key_variable is not None:
        app = app.api_keys(file=security.api_key_file, environment=security.api_key_variable)
    if (security.tls_certificate is None) != (security.tls_private_key is None):
        raise typer.BadParameter("go together", param_hint="--tls-certificate, --tls-private-key")
    if security.tls_certificate is not None and security.tls_private_key is not None:
        app = app.tls(security.tls_certificate, security.tls_private_key)
    app = app.cors(*security.cors_origin or ())
    if serving.max_sequences and serving.workers != 1:
        raise ConfigurationError("workers goes without max_sequences: a batch has one for each of its slots")
    base = profile.derive(load.load(model))
    lease = base
    if serving.max_sequences:
        lease = base.with_batching(serving.max_sequences, step_target_ms=serving.step_target_ms)
    app = app.llm(serving.path, lease, alias=serving.alias, temperature=serving.temperature, workers=serving.workers)
    if serving.max_sessions:
        app = app.sessions(serving.path, base, max_sessions=serving.max_sessions, idle_ms=serving.session_idle_ms)
    app.serve(ready=lambda url: note(f"{app.name}: {app.paths[0].description}, at {url}"))
