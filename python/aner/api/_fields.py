"""The bodies of requests: their fields, and what each means. Ranges are the native core's business, once for all languages."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
        },
    },
}


class Body(BaseModel):
    """Unknown fields are refused, types are not guessed, numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Options(Body):
    """What every generation takes; the names and meanings of ``Model.generate`` (docs/generation.md)."""

    max_tokens: int | None = Field(None, description="At most this many tokens; by default, and at most, the output limit.")
    temperature: float | None = Field(
        None, description="0: always the likeliest token. Default: the application's, 0 unless set."
    )
    top_p: float | None = Field(None, description="Only the likeliest tokens that make up this probability. Default 1.")
    seed: int | None = Field(None, description="0..2^64-1; drawn when not given. Choice i of several takes seed + i.")
    stop: str | list[str] | None = Field(None, description="End before any of these texts, at most 16.")
    frequency_penalty: float | None = Field(None, description="Subtracted for each occurrence among recent tokens. Default 0.")
    presence_penalty: float | None = Field(None, description="Subtracted once for each recent token. Default 0.")
    logit_bias: dict[str, float] | None = Field(None, description="Token id to number, -100..100, added to its logit.")
    stream: bool | None = Field(None, description="Answer with server-sent events.")
    top_k: int | None = Field(None, description="Extension. Only the K likeliest tokens. Default 0: all.")
    min_p: float | None = Field(None, description="Extension. Only tokens with this share of the likeliest one's probability.")
    repeat_penalty: float | None = Field(None, description="Extension. Divides the logits of recent tokens. Default 1: off.")
    penalty_window: int | None = Field(None, description="Extension. How many tokens count as recent. Default 64.")
    min_tokens: int | None = Field(None, description="Extension. Do not end before this many tokens. Default 0.")
    ignore_eos: bool | None = Field(None, description="Extension. Go on where the model would end. Default false.")
    stop_token_ids: list[int] | None = Field(None, description="Extension. End at any of these tokens.")


#: Options that go to the lease under their own name.
PASSED_ON = (
    "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "top_k", "min_p", "repeat_penalty",
    "penalty_window", "min_tokens", "ignore_eos", "stop_token_ids",
)  # fmt: skip


class ChatRequest(Options):
    """One message of a user (``prompt``), or a conversation (``messages``)."""

    prompt: str | None = Field(None, description="A message of a user, rendered by the model's chat template.")
    messages: list[dict[str, Any]] | None = Field(
        None, description="The conversation instead, or what continues a session's.", json_schema_extra=_MESSAGES
    )
    session: str | None = Field(None, description="The name of a conversation that this one continues.")


class SessionRequest(Body):
    """A new conversation."""

    name: str | None = Field(
        None, description="1 to 64 letters, digits and . _ -; drawn when not given.", pattern=r"^[A-Za-z0-9._-]{1,64}$"
    )


class StreamOptions(Body):
    """How a stream ends."""

    include_usage: bool | None = Field(None, description="A last chunk with the tokens used.")
    include_obfuscation: bool | None = Field(None, description="Ignored: nothing is padded.")


class OpenAIOptions(Options):
    """What both OpenAI endpoints take. A field that would change the answer and is not supported is refused."""

    model: str = Field(description="The alias of a model: see /v1/models.")
    n: int | None = Field(None, description="Answers for each prompt. Default 1.")
    stream_options: StreamOptions | None = Field(None, description="Only together with stream.")
    user: Any = Field(None, description="Ignored.")
    metadata: Any = Field(None, description="Ignored.")
    store: Any = Field(None, description="Ignored: nothing is stored.")
    service_tier: Any = Field(None, description="Ignored.")
    safety_identifier: Any = Field(None, description="Ignored.")
    prompt_cache_key: Any = Field(None, description="Ignored: reuse depends on the tokens alone.")
    prompt_cache_retention: Any = Field(None, description="Ignored.")


class ChatCompletionRequest(OpenAIOptions):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(
        description="The conversation, rendered whole by the model's chat template.", json_schema_extra=_MESSAGES
    )
    max_completion_tokens: int | None = Field(None, description="The newer name of max_tokens.")
    logprobs: bool | None = Field(None, description="Log probabilities; in a stream they come with the last piece.")
    top_logprobs: int | None = Field(None, description="This many alternatives for each token, 0..20; needs logprobs.")
    prediction: Any = Field(None, description="Ignored.")
    parallel_tool_calls: Any = Field(None, description="Ignored: there are no tools.")
    tools: Any = Field(None, description="Only null or [].")
    tool_choice: Any = Field(None, description="Only null, 'none' or 'auto'.")
    functions: Any = Field(None, description="Only null or [].")
    function_call: Any = Field(None, description="Only null, 'none' or 'auto'.")
    response_format: Any = Field(None, description="Only null or {'type': 'text'}.")
    modalities: Any = Field(None, description="Only null or ['text'].")
    audio: Any = Field(None, description="Only null.")
    reasoning_effort: Any = Field(None, description="Only null.")
    verbosity: Any = Field(None, description="Only null.")
    web_search_options: Any = Field(None, description="Only null.")


class CompletionRequest(OpenAIOptions):
    """The body of POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="Text that is continued as it is, without the chat template; token ids; or several of either."
    )
    logprobs: int | None = Field(None, description="Log probabilities and this many alternatives for each token, 0..20.")
    best_of: Any = Field(None, description="Only null or 1.")
    echo: Any = Field(None, description="Only null or false.")
    suffix: Any = Field(None, description="Only null.")


#: Fields that would change the answer, with the values at which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
}


class TokenizeRequest(Body):
    """Text to tokens."""

    text: str
    model: str | None = Field(None, description="The alias of a model; not needed when only one is served.")
    add_bos: bool = Field(False, description="Begin with the token that the model wants at the beginning.")
    control: bool = Field(False, description="Texts of control tokens become those tokens.")


class DetokenizeRequest(Body):
    """Tokens to text."""

    tokens: list[int]
    model: str | None = Field(None, description="The alias of a model; not needed when only one is served.")
