"""What is written where, and in which form."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

# A model, or a file's metadata, must not move the cursor, set the title or write the clipboard of whoever reads it.
_CONTROL = {code: "\ufffd" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t\r"} | {
    ord("\r"): None
}


def prepare_streams() -> None:
    """UTF-8, except at a terminal of another encoding; nothing fails to be encoded; a closed stream is an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name) or open(os.devnull, mode)  # noqa: SIM115  (open for as long as the process runs)
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace" if mode == "w" else "surrogateescape")
        setattr(sys, name, stream)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """A line, or several, for the person at the keyboard."""
    print(harmless(text), file=sys.stderr, flush=True)


def harmless(text: str) -> str:
    """Without control characters but line breaks and tabs."""
    return text.translate(_CONTROL)


def one_line(error: object) -> str:
    return harmless(" ".join(str(error).split("\n")))


def print_figures(figures: Mapping[str, object], file: TextIO | None = None) -> None:
    """Aligned names and values; a value of several lines is indented below its first."""
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        text = str(value).replace("\n", "\n" + " " * (width + 2))
        print(harmless(f"{name:<{width}}  {text}"), file=file)


def measured(figures: Mapping[str, Any]) -> str:
    """The table of the figures that were measured."""
    from aner.llm._figures import Figures

    return str(Figures({name: value for name, value in figures.items() if value != -1}))


def size(n_bytes: int) -> str:
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= one:
            return f"{n_bytes / one:,.1f} {unit}"
    return f"{n_bytes} bytes"


class Answer:
    """Text of a model on stdout, as it comes: to a terminal without control characters, to anything else unchanged.

    A context manager: whatever was written ends with a line break, also when the answer ended with an exception.
    """

    def __init__(self) -> None:
        self._last = ""
        self._terminal = sys.stdout.isatty()

    def write(self, piece: str) -> None:
        before, self._last = self._last, "?"  # should Ctrl-C come in the middle, the line still wants its end
        sys.stdout.write(harmless(piece) if self._terminal else piece)
        sys.stdout.flush()
        self._last = piece[-1:] or before

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            lost = issubclass(kind, OSError)
            interrupted = self._terminal and issubclass(kind, KeyboardInterrupt)  # whoever catches it ends the line with the ^C
            if lost or interrupted or self._last in ("", "\n"):
                return
        sys.stdout.write("\n")
        sys.stdout.flush()


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], object] | None]:
    """A ``progress=`` for ``load`` and ``inspect`` that draws a bar on stderr; None when that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("header", total=1.0)

        def report(phase: str, fraction: float) -> None:
            bars.update(task, description=phase, completed=fraction)

        yield report


def response_figures(response: Any) -> dict[str, object]:
    """A response for JSON."""
    timings = response.timings()
    return {
        "text": response.text(),
        "finish_reason": response.finish_reason(),
        "input_tokens": timings["input_tokens"],
        "cached_input_tokens": timings["cached_input_tokens"],
        "output_tokens": timings["output_tokens"],
        "seed": response.seed(),
        "output_hash": response.output_hash(),
        "tokens_per_second": response.tokens_per_second(),
        "timings": dict(timings),
    }
