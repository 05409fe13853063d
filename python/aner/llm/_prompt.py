"""From what a caller gives (text, messages, token ids) to the tokens of a prompt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import aner_native

from aner.errors import ContextFullError, InvalidRequestError, TemplateError
from aner.llm._options import token_ids, utf8
from aner.llm._template import ChatTemplate


class Prompter:
    """The chat template and the tokenizer of one model; immutable, shared by its leases."""

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

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def tokens(
        self,
        native: aner_native.NativeLease,
        prompt: str | Sequence[int] | None,
        messages: Sequence[Mapping[str, Any]] | None,
        raw: bool,
    ) -> tuple[list[int], int, int]:
        """Token ids, nanoseconds of the template and of the tokenizer; -1 for the one that was not used."""
        if (prompt is None) == (messages is None):
            raise InvalidRequestError("give either a prompt or messages=, and not both")
        if not isinstance(raw, bool):
            raise InvalidRequestError(f"raw must be True or False, it is {raw!r:.100}")
        if messages is not None and raw:
            raise InvalidRequestError("messages are rendered by the chat template; raw=True is for a prompt")
        if prompt is not None and not isinstance(prompt, str):
            return token_ids("prompt", prompt), -1, -1
        template_ns = -1
        spans: list[tuple[int, int]] = []
        if messages is not None or (not raw and (self._template is not None or self._broken is not None)):
            if self._broken is not None:
                raise self._broken
            if self._template is None:
                raise InvalidRequestError(
                    "this model has no chat template, so messages cannot be rendered: give one with "
                    "load(..., chat_template=...), or a prompt string, which is then taken as raw text"
                )
            if prompt is not None:
                utf8("prompt", prompt)
                messages = [{"role": "user", "content": prompt}]
            assert messages is not None  # one of the two was given
            before = time.perf_counter_ns()
            rendered = self._template.render(messages, template_args=self._template_args)
            template_ns = time.perf_counter_ns() - before
            text, spans, is_rendered = utf8("the rendered prompt", rendered.text), list(rendered.literal_spans), True
        else:
            text, is_rendered = utf8("prompt", prompt), False
        before = time.perf_counter_ns()
        self._refuse_hopeless(text)
        ids = native.tokenize(text, True, is_rendered, spans)
        return ids, template_ns, time.perf_counter_ns() - before

    def _refuse_hopeless(self, text: bytes) -> None:
        """A text that could not fit even in the longest tokens is refused before it is tokenized."""
        least = -(-len(text) // self._longest_piece)
        if least > self._context:
            raise ContextFullError(
                f"the prompt has {len(text)} bytes, at least {least} tokens, and the context holds {self._context}, of which one is "
                "kept for the answer: shorten the prompt or load with a larger context"
            )
