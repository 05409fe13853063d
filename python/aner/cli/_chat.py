"""``aner chat``: a conversation at the keyboard, or one message for each line of stdin."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aner.cli._output import Answer, measured, note
from aner.cli._parameters import ChatOptions, ChatProfileOptions, LoadOptions, ModelPath, with_groups
from aner.errors import AnerError, ConfigurationError, ContextFullError

if TYPE_CHECKING:
    from aner.llm import Model, Response

HELP = """\
/system TEXT  set the system message; without TEXT, remove it
/reset        forget the conversation, but not the system message
/timings      what the last answer cost
/save FILE    write the conversation as JSON; an existing file is not touched
/exit         leave, as Ctrl-D does
//TEXT        a message that begins with /
Ctrl-C stops an answer; the up arrow brings earlier messages back."""


@with_groups
def chat(
    model: ModelPath,
    *,
    load: LoadOptions,
    profile: ChatProfileOptions,
    request: ChatOptions,
    system: Annotated[str | None, typer.Option(help="The system message.", metavar="TEXT", show_default=False)] = None,
) -> None:
    """Talk with a model.

    /help lists the commands. When stdin is not a terminal, each line of it is a message, and the first error ends all.
    """
    if request.logprobs is not None:
        raise typer.BadParameter("is an option of generate", param_hint="--logprobs")
    options = request.values()
    loaded = load.load(model)
    if loaded.metadata()["memory_kind"] in ("recurrent", "hybrid") and profile == ChatProfileOptions():
        profile = ChatProfileOptions(prefix_cache_entries=0)  # its memory cannot be trimmed to a prefix
    with profile.derive(loaded) as lease:
        if not lease.supports("chat"):
            raise ConfigurationError(
                f"{model} has no usable chat template: give one with --chat-template, or use 'aner generate'"
            )
        Conversation(lease, options, system).run()


class Conversation:
    """The messages so far, all of which go into each request, and what can be said to them."""

    def __init__(self, lease: Model, options: dict[str, Any], system: str | None) -> None:
        self._lease = lease
        self._options = options
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._last: Response | None = None
        self._interactive = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> None:
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (input() edits its line with it)
            facts = self._lease.metadata()
            name = facts["name"] or facts["architecture"]
            note(f"{name} on {facts['device']}, context {facts['context']}. /help lists the commands, Ctrl-D leaves.")
        while (line := self._read()) is not None:
            try:
                if line.strip() and not self._take(line):
                    return
            except (AnerError, OSError) as error:
                if not self._interactive or isinstance(error, BrokenPipeError):
                    raise
                note(f"({error})")
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                note("\n(stopped: neither your message nor this answer is in the conversation)")

    def _read(self) -> str | None:
        """The next line, None after the last."""
        if not self._interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        while True:
            try:
                return input("> ")
            except KeyboardInterrupt:
                note("\n(Ctrl-D or /exit leaves)")
            except EOFError:
                note("")
                return None

    def _take(self, line: str) -> bool:
        """Do what a line says; False: leave."""
        if line.startswith("//"):
            self._say(line[1:])
        elif not line.startswith("/"):
            self._say(line)
        else:
            name, _, rest = line.partition(" ")
            if name == "/exit":
                return False
            commands: dict[str, Callable[[str], None]] = {
                "/help": lambda _: note(HELP),
                "/system": self._set_system,
                "/reset": self._reset,
                "/timings": self._show_timings,
                "/save": self._save,
            }
            if (command := commands.get(name)) is None:
                note(f"({name} is not a command: /help lists them; //TEXT sends a text that begins with /)")
            else:
                command(rest.strip())
        return True

    def _say(self, text: str) -> None:
        messages = [*self._all(), {"role": "user", "content": text}]
        try:
            with self._lease.start(messages=messages, **self._options) as running, Answer() as answer:
                for piece in running:
                    answer.write(piece)
                self._last = running.response()
        except ContextFullError as error:
            raise ContextFullError(
                f"the context is full: {error}. Your message was not sent and nothing is lost: /save FILE keeps the "
                "conversation, /reset starts a new one; --context N gives more room to the next chat"
            ) from None
        self._messages = [*messages[bool(self._system) :], {"role": "assistant", "content": self._last.text()}]
        if self._last.finish_reason() == "length":
            note("(cut off: --max-tokens)" if self._reached_limit() else "(cut off: the context is full)")

    def _reached_limit(self) -> bool:
        return self._last is not None and self._last.timings()["output_tokens"] == self._options["max_tokens"]

    def _all(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self._system}] if self._system else []), *self._messages]

    def _set_system(self, text: str) -> None:
        self._system = text or None
        note("(system message set)" if text else "(no system message)")

    def _reset(self, _: str) -> None:
        self._messages = []
        note("(a new conversation)")

    def _show_timings(self, _: str) -> None:
        if self._last is None:
            note("(there was no answer yet)")
            return
        rate = self._last.tokens_per_second()
        note(f"{measured(self._last.timings())}\n{'not measured' if rate is None else f'{rate:.1f}'} tokens/s")

    def _save(self, name: str) -> None:
        if not name:
            note("(/save FILE)")
            return
        record = {"fingerprint": self._lease.fingerprint(), "messages": self._all()}
        path = Path(name).expanduser()
        try:
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        except FileExistsError:
            note(f"({path} exists; choose another name)")
            return
        note(f"({len(record['messages'])} messages in {os.fspath(path)})")
