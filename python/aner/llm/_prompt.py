"""From what a caller gives (text, messages, token ids) to the tokens of a prompt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aner_native

from aner.errors import AnerError, ContextFullError, InvalidRequestError, TemplateError
from aner.llm._options import token_ids, utf8
from aner.llm._template import ChatTemplate, template_only_prefix


class Prompter:
    """The chat template of one model and how prompts are made with it; immutable, shared by its leases, holds no weights."""

    def __init__(
        self, native: aner_native.NativeLease, chat_template: str | None, template_args: Mapping[str, Any] | None
    ) -> None:
        if chat_template is not None and not isinstance(chat_template, str):
            raise InvalidRequestError(f"chat_template must be a str, it is {chat_template!r:.100}")
        info, vocabulary = native.info(), native.vocabulary()
        self._context: int = info["context"]
        self._longest_piece: int = vocabulary["longest_piece"]
        source = info["chat_template"] if chat_template is None else chat_template
        texts = {token: text for text, token in vocabulary["control"].items()}
        self._template: ChatTemplate | None = None
        self._broken: TemplateError | None = None
        try:
            if source:
                self._template = ChatTemplate(
                    source,
                    bos_token=texts.get(vocabulary["bos"], ""),
                    eos_token=texts.get(vocabulary["eos"], ""),
                    control_tokens=list(vocabulary["control"]),
                )
        except TemplateError as error:
            if chat_template is not None:
                raise
            self._broken = error  # the model's own: it is still good for raw prompts
        self._template_args = dict(template_args or {})
        self._bos_tokens = 1 if vocabulary["adds_bos"] else 0
        self._shared_ids: list[int] | None = None

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def tokens(
        self,
        native: aner_native.NativeLease,
        prompt: str | Sequence[int] | None,
        messages: Sequence[Mapping[str, Any]] | None,
        raw: bool,
    ) -> tuple[list[int], dict[str, int]]:
        """Token ids and what was measured: nanoseconds of template and tokenizer (-1 if unused), tokens every prompt begins with."""
        if (prompt is None) == (messages is None):
            raise InvalidRequestError("give either a prompt or messages=, and not both")
        if not isinstance(raw, bool):
            raise InvalidRequestError(f"raw must be True or False, it is {raw!r:.100}")
        if messages is not None:
            if raw:
                raise InvalidRequestError("messages are rendered by the chat template; raw=True is for a prompt")
            return self.conversation(native, messages)
        if not isinstance(prompt, str):
            ids = token_ids("prompt", prompt)
            return ids, {"template_ns": -1, "tokenize_ns": -1, "template_tokens": self._leading_template_tokens(native, ids)}
        text = utf8("prompt", prompt)
        if not raw and (self._template is not None or self._broken is not None):
            return self.conversation(native, [{"role": "user", "content": prompt}])
        ids, tokenize_ns = self._tokenize(native, text, False, [])
        return ids, {"template_ns": -1, "tokenize_ns": tokenize_ns, "template_tokens": self._bos_tokens}

    def conversation(
        self, native: aner_native.NativeLease, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], dict[str, int]]:
        """The same for a whole conversation, which only a chat template can render."""
        if self._broken is not None:
            raise self._broken
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template, so messages cannot be rendered: give one with "
                "load(..., chat_template=...), or a prompt string, which is then taken as raw text"
            )
        before = time.perf_counter_ns()
        rendered = self._template.render(messages, template_args=self._template_args)
        template_ns = time.perf_counter_ns() - before
        ids, tokenize_ns = self._tokenize(
            native, utf8("the rendered prompt", rendered.text), True, list(rendered.literal_spans)
        )
        return ids, {"template_ns": template_ns, "tokenize_ns": tokenize_ns, "template_tokens": len(self._template_ids(native))}

    def _tokenize(
        self, native: aner_native.NativeLease, text: bytes, control: bool, literal: list[tuple[int, int]]
    ) -> tuple[list[int], int]:
        before = time.perf_counter_ns()
        self._refuse_hopeless(text)
        ids = native.tokenize(text, True, control, literal)
        return ids, time.perf_counter_ns() - before

    def _template_ids(self, native: aner_native.NativeLease) -> list[int]:
        """Tokens of the text that two conversations share which differ in their first user character; found out once."""
        if self._shared_ids is None:
            shared = b""
            if self._template is not None:
                # A template that needs other messages: nothing is known to be shared.
                with contextlib.suppress(AnerError):
                    shared = template_only_prefix(self._template).encode()
            self._shared_ids = native.tokenize(shared, True, True, [])
        return self._shared_ids

    def _leading_template_tokens(self, native: aner_native.NativeLease, ids: Sequence[int]) -> int:
        """How many of ``ids`` from the first on are those of the template, or the begin-of-text token alone."""
        shared = self._template_ids(native)
        return next((i for i, (a, b) in enumerate(zip(ids, shared, strict=False)) if a != b), min(len(ids), len(shared)))

    def _refuse_hopeless(self, text: bytes) -> None:
        """A text that could not fit even in the longest tokens is refused before it is tokenized."""
        least = -(-len(text) // self._longest_piece)
        if least > self._context:
            raise ContextFullError(
                f"the prompt has {len(text)} bytes, at least {least} tokens, and the context holds {self._context}, of which one is "
                "kept for the answer: shorten the prompt or load with a larger context"
            )
