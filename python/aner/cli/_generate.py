"""``aner generate``: one prompt, one answer."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from aner.cli._output import Answer, measured, note, print_json, response_figures
from aner.cli._parameters import AsJson, LoadOptions, ModelPath, ProfileOptions, RequestOptions, with_groups
from aner.errors import InvalidRequestError


@with_groups
def generate(
    model: ModelPath,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="A message to the model; - or nothing: read it from stdin.", show_default=False),
    ] = None,
    *,
    load: LoadOptions,
    profile: ProfileOptions,
    request: RequestOptions,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print the text as it comes.")] = True,
    timings: Annotated[bool, typer.Option("--timings", help="Timings of the load and of the request, on stderr.")] = False,
    json: AsJson = False,
) -> None:
    """Answer one prompt.

    The answer and a line break go to stdout, everything else to stderr.

    A prompt from stdin loses one line break at its end.
    """
    options = request.values()
    if request.logprobs is not None and not json:
        raise typer.BadParameter("needs --json", param_hint="--logprobs")
    text = _from_stdin(waits=prompt == "-") if prompt in (None, "-") else prompt
    with profile.derive(load.load(model)) as lease, lease.start(text, raw=raw, **options) as running:
        if json:
            response = running.response()
        else:
            with Answer() as answer:
                for piece in running if stream else [running.response().text()]:
                    answer.write(piece)
            response = running.response()
        if json:
            figures = response_figures(response) | {"fingerprint": lease.fingerprint(), "device": lease.device()}
            if request.logprobs is not None:
                figures["logprobs"] = _plain(response.logprobs() or ())
            print_json(figures | {"load": dict(lease.load_summary())})
        elif timings:
            rate = response.tokens_per_second()
            note(f"{measured(lease.load_summary())}\n\n{measured(response.timings())}\n")
            note(f"{'not measured' if rate is None else f'{rate:.1f}'} tokens/s, {response.finish_reason()}")


def _from_stdin(*, waits: bool) -> str:
    """The prompt; only one that ``waits`` takes it from a keyboard."""
    if sys.stdin.isatty() and not waits:
        raise typer.BadParameter("give one, or pipe it to stdin", param_hint="PROMPT")
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InvalidRequestError(f"the prompt on stdin is not UTF-8: {found}") from None
    if not text:
        raise typer.BadParameter("there was nothing on stdin", param_hint="PROMPT")
    return text.removesuffix("\n").removesuffix("\r")


def _plain(logprobs: Iterable[Any]) -> list[dict[str, object]]:
    """Each position with its alternatives; the logarithm of 0 is null."""

    def one(entry: Any) -> dict[str, object]:
        logprob = entry.logprob if math.isfinite(entry.logprob) else None
        return {"token_id": entry.token_id, "bytes": list(entry.bytes), "logprob": logprob}

    return [one(entry) | {"top": [one(alternative) for alternative in entry.top]} for entry in logprobs]
