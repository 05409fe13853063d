"""The application: its commands, ``--version``, and what becomes of an error, of Ctrl-C and of a closed pipe.

Exit codes: 0; 1 for an error, 2 for wrong usage, each with one line on stderr; 130 for Ctrl-C; 141 for a reader that went away.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import aner
from aner.cli import _chat, _doctor, _generate, _info, _plan, _serve
from aner.cli._output import one_line, prepare_streams, print_json

_USAGE_ERROR: Any = typer.BadParameter.__base__  # every complaint about the command line; Typer has no public name for it


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn what ends a command early into its line on stderr and its exit code."""
    try:
        yield
        sys.stdout.flush()
        return
    except KeyboardInterrupt:
        code = 130
        if sys.stderr.isatty():
            _complain("\n")  # after the ^C that the terminal shows
    except BrokenPipeError:
        code = 141  # 128 + SIGPIPE: what a shell reports of other commands in this case
        _discard_output()
    except (aner.AnerError, OSError, UnicodeError) as error:
        code = 1
        if isinstance(error, OSError):
            _discard_output()  # what is left of it would fail again at exit
        _complain(f"aner: {one_line(error)}\n")
    raise typer.Exit(code)


class _Commands(TyperGroup):
    """All commands, and --help, end in ``_reported``, whichever way."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _reported():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _reported():
            return super().invoke(ctx)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _discard_output() -> None:
    """Point stdout at nothing."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


app = typer.Typer(
    cls=_Commands, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.command("info")(_info.info)
app.command("plan")(_plan.plan)
app.command("generate")(_generate.generate)
app.command("chat")(_chat.chat)
app.command("doctor")(_doctor.doctor)
app.command("serve")(_serve.serve)


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Version, engine pin and compiled backends.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --version: as JSON.")] = False,
) -> None:
    """Run local GGUF language models. Nothing is downloaded: MODEL is always a file."""
    if ctx.invoked_subcommand is not None:
        if version or json:
            raise typer.BadParameter(f"options of '{ctx.invoked_subcommand}' stand after it", param_hint="--version, --json")
        return
    if not version and not json:
        print(ctx.get_help())
        raise typer.Exit(2)
    if not version:
        raise typer.BadParameter("goes with --version, or after a command", param_hint="--json")
    build: dict[str, Any] = aner.build_info()
    engine = {name: build[f"engine_{name}"] for name in ("version", "commit", "origin")}
    if json:
        print_json({"version": build["version"], "engine": {"name": "llama.cpp", **engine}, "backends": build["backends"]})
    else:
        print(f"aner {build['version']}")
        print(f"engine    llama.cpp {engine['version']} (commit {engine['commit']}, {engine['origin']})")
        print(f"backends  {', '.join(build['backends'])}")


def main() -> None:
    """Run the command line of this process, and exit."""
    prepare_streams()
    try:
        code = app(prog_name="aner", standalone_mode=False)
    except typer.Abort:
        code = 130
    except _USAGE_ERROR as error:
        path = error.ctx.command_path if error.ctx else "aner"
        _complain(f"{path}: {one_line(error.format_message())} (see {path} --help)\n")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
