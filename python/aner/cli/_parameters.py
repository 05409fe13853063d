"""Groups of options that several commands share, each written once.

A command takes a whole group as one parameter, annotated with one of these dataclasses; ``with_groups`` shows Typer the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from aner.cli._output import progress_bar

if TYPE_CHECKING:
    from aner.llm import Model

Command = TypeVar("Command", bound=Callable[..., Any])

ModelPath = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, or the first file of a split model.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]


def option(text: str, *names: str, panel: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


_load = functools.partial(option, panel="Loading")
_request = functools.partial(option, panel="Generation")
_profile = functools.partial(option, panel="Profile")


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """The arguments of ``llm.load``."""

    context: Annotated[int, _load("Positions of the conversation: prompt and answer together.")] = 4096
    device: Annotated[str, _load("auto, cpu, metal, cuda, cuda:N, vulkan or vulkan:N. Only auto may choose the CPU.")] = "auto"
    kv_cache_type: Annotated[str, _load("f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.")] = "f16"
    flash_attention: Annotated[str, _load("auto, on or off.")] = "auto"
    reproducible: Annotated[
        bool, _load("Tokens depend on the request alone: reference kernels, CPU only, slower.", "--reproducible")
    ] = False
    mapped: Annotated[bool, _load("Map the weights, or read them into private memory.", "--mapped/--no-mapped")] = True
    expected_sha256: Annotated[str | None, _load("Refuse a file of any other content.", metavar="HEX")] = None
    chat_template: Annotated[Path | None, _load("A chat template instead of the model's own.", metavar="FILE")] = None
    template_args: Annotated[
        str | None, _load("Variables for the chat template, as a JSON object.", metavar="JSON", show_default=False)
    ] = None

    def refuse_unless(self, loads: bool, wanted: str, *, allowed: tuple[str, ...] = ()) -> None:
        """Complain about options that would have no effect, because nothing is loaded."""
        for field in dataclasses.fields(self):
            if not loads and field.name not in allowed and getattr(self, field.name) != field.default:
                raise typer.BadParameter(f"needs {wanted}", param_hint="--" + field.name.replace("_", "-"))

    def load(self, path: str) -> Model:
        from aner import llm

        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        settings["chat_template"] = self.chat_template.read_text("utf-8") if self.chat_template else None
        settings["template_args"] = self._template_args()
        with progress_bar() as progress:
            return llm.load(path, progress=progress, **settings)

    def _template_args(self) -> dict[str, Any] | None:
        if self.template_args is None:
            return None
        try:
            given = json.loads(self.template_args)
        except ValueError as error:
            raise typer.BadParameter(f"not JSON: {error}", param_hint="--template-args") from None
        if not isinstance(given, dict):
            raise typer.BadParameter('a JSON object is wanted, such as {"name": true}', param_hint="--template-args")
        return given


@dataclasses.dataclass(frozen=True)
class ProfileOptions:
    """The settings of ``OptimizerProfile``, and adapters. Speed settings change no greedy answer but near ties."""

    threads: Annotated[int, _profile("Compute threads for one row; 0: chosen from the usable CPUs.")] = 0
    prefill_threads: Annotated[int, _profile("Compute threads for several rows; 0: chosen.")] = 0
    batch_tokens: Annotated[int, _profile("Rows of one target call.")] = 512
    micro_batch_tokens: Annotated[
        int | None, _profile("Rows of one graph; 512 or --batch-tokens if less.", show_default=False)
    ] = None
    prefix_cache_entries: Annotated[int, _profile("Prompts whose KV is kept for the next, 0 to 4.")] = 0
    prefix_cache_tokens: Annotated[
        int | None, _profile("Prompt tokens kept of each; 2048 or the context if less.", show_default=False)
    ] = None
    speculative_tokens: Annotated[int, _profile("Longest draft of prompt lookup, 0 to 32; greedy requests only.")] = 0
    adapter: Annotated[
        list[str] | None, _profile("A LoRA adapter; up to four.", metavar="FILE[=SCALE]", show_default=False)
    ] = None

    def derive(self, lease: Model) -> Model:
        """``lease`` itself when nothing was asked for; else a new one, and ``lease`` is closed."""
        from aner.llm import OptimizerProfile

        asked = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "adapter"}
        profile = OptimizerProfile(**asked)
        derived = lease
        for path, scale in map(_adapter, self.adapter or ()):
            derived = _replace(derived, derived.with_adapter(path, scale))
        return derived if profile == OptimizerProfile() else _replace(derived, derived.with_optimizer(profile))


@dataclasses.dataclass(frozen=True)
class ChatProfileOptions(ProfileOptions):
    """The same for a conversation, each of whose prompts begins with the one before."""

    prefix_cache_entries: Annotated[int, _profile("Prompts whose KV is kept for the next, 0 to 4.")] = 1


@dataclasses.dataclass(frozen=True)
class RequestOptions:
    """The options of one request."""

    max_tokens: Annotated[int, _request("At most this many tokens of answer.")] = 256
    temperature: Annotated[float, _request("0: always the likeliest token. Above: the more, the freer.")] = 0.0
    top_k: Annotated[int, _request("Only the K likeliest tokens; 0: all.")] = 0
    top_p: Annotated[float, _request("Only the likeliest tokens that make up this probability.")] = 1.0
    min_p: Annotated[float, _request("Only tokens with at least this share of the likeliest one's probability.")] = 0.0
    repeat_penalty: Annotated[float, _request("Divides the logits of recent tokens; 1: off.")] = 1.0
    frequency_penalty: Annotated[float, _request("Subtracted for each occurrence among recent tokens.")] = 0.0
    presence_penalty: Annotated[float, _request("Subtracted once for each recent token.")] = 0.0
    penalty_window: Annotated[int, _request("How many tokens count as recent.")] = 64
    logit_bias: Annotated[
        list[str] | None,
        _request("Added to a token's logit; -inf bans it. May be repeated.", metavar="TOKEN=NUMBER", show_default=False),
    ] = None
    seed: Annotated[int | None, _request("Makes sampling repeatable; drawn, when not given.", show_default=False)] = None
    stop: Annotated[
        list[str] | None, _request("End before this text. May be repeated.", metavar="TEXT", show_default=False)
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        _request("End at this token. May be repeated.", "--stop-token-id", metavar="TOKEN", show_default=False),
    ] = None
    min_tokens: Annotated[int, _request("Do not end before this many tokens.")] = 0
    ignore_eos: Annotated[bool, _request("Go on where the model would end.", "--ignore-eos")] = False
    logprobs: Annotated[
        int | None, _request("Log probabilities and this many alternatives for each token; needs --json.", show_default=False)
    ] = None
    timeout: Annotated[float | None, _request("Give up after this many seconds.", metavar="SECONDS", show_default=False)] = None

    def values(self) -> dict[str, Any]:
        """As ``Model.generate`` takes them."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given["logit_bias"] = dict(map(_bias, self.logit_bias or ())) or None
        return given


@dataclasses.dataclass(frozen=True)
class ChatOptions(RequestOptions):
    """The same for an answer in a conversation, which may be longer."""

    max_tokens: Annotated[int, _request("At most this many tokens for each answer.")] = 1024


def _replace(source: Model, derived: Model) -> Model:
    source.close()
    return derived


def _adapter(given: str) -> tuple[str, float]:
    path, equals, scale = given.rpartition("=")
    try:
        return (path, float(scale)) if equals else (given, 1.0)
    except ValueError:
        return given, 1.0  # the path itself has an equals sign


def _bias(given: str) -> tuple[int, float]:
    token, _, bias = given.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        message = f"{given!r} is not of the form TOKEN=NUMBER, such as 42=-1.5"
        raise typer.BadParameter(message, param_hint="--logit-bias") from None


def with_groups(command: Command) -> Command:
    """``command`` with each parameter that is a group replaced by the group's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            for field in dataclasses.fields(groups[name]):
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(field.name, kind, default=field.default, annotation=types[field.name]))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        return command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run  # type: ignore[return-value]
