"""The model's own chat template: messages in, the prompt text out, rendered as the reference implementation would.

``ChatTemplate`` compiles once and may render from many threads. What a user writes stays text: wherever a request spells
a control token (``<|im_end|>`` in a message), the rendered prompt says so, and the tokenizer takes that span as plain text.

The marks stand inside the spelled token while the template runs, so that no slice, split or concatenation can put a real
one together; only text that becomes a token when the template removes something from its middle is not seen. A template
that looks for such a token in content (``'</think>' in content``) therefore does not find it. Assistant messages are the
exception, since templates take their own earlier output apart: there the tokens that the template searches for are left
alone, but never BOS or EOS. All else in assistant text is marked, because a user can make the model say ``<|im_end|>`` and
have it come back with the next request.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes

from aner.errors import InvalidRequestError, TemplateError
from aner.llm._messages import ControlTokens, Marker, map_contents, plain_data, texts_of, validate_messages
from aner.llm._meter import LimitError, Meter
from aner.llm._sandbox import ChatEnvironment
from aner.llm._sandbox_values import Refusal

MAX_SOURCE = 1 << 17  # characters; the longest template in wide use has 17 thousand
TIMEOUT = 5.0  # seconds a render may take
_MAX_REASON = 1000  # characters of what a template said
_MAX_ROLES = 32  # remembered: a client may make up any number
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the reference implementation takes one for the other
_SEARCHES = frozenset(
    {"count", "endswith", "find", "index", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"}
    | {"rindex", "rpartition", "rsplit", "rstrip", "split", "startswith", "strip"}
)

_environment = ChatEnvironment()


@dataclass(frozen=True)
class RenderedPrompt:
    """``literal_spans``: half-open ranges of UTF-8 bytes of ``text``, ascending, that spell a control token but are text."""

    text: str
    literal_spans: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A compiled chat template with the model's special tokens."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        control_tokens: Sequence[str],
        special_texts: Mapping[str, str] = {},
    ) -> None:
        """Compile ``source``, or raise TemplateError.

        ``special_texts``: more special tokens, by the names that templates know them by, such as ``unk_token``.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are accepted")
        try:
            tree = _environment.parse(source)
            self._template = _environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template does not compile: line {error.lineno}: {error.message}") from None
        except Exception as error:
            raise TemplateError(f"the chat template does not compile: {type(error).__name__}: {error}") from None
        self.source = source
        self._specials = {"bos_token": bos_token, "eos_token": eos_token, **special_texts}
        self._specials = {name: text for name, text in self._specials.items() if text}
        self._tokens = ControlTokens(control_tokens)
        searched = "\0".join(_searched_texts(tree))
        self._left_to_assistant = {token for _, token in self._tokens.found(searched)} - {bos_token, eos_token}
        self._takes_parts: dict[str, bool] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_args: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        timeout: float = TIMEOUT,
    ) -> RenderedPrompt:
        """Render the complete ``messages``.

        InvalidRequestError for messages or arguments that are not what they should be; TemplateError, with what the
        template said and the message it said it of, when it refuses them, fails, or takes more than ``timeout`` seconds.
        """
        variables = self._variables(template_args)
        checked = [_with_reasoning(message) for message in validate_messages(messages)]
        checked = map_contents(checked, self._content)
        marker = None
        used = [*texts_of(checked), *texts_of(variables)]
        if any(True for text in used for _ in self._tokens.found(text)):
            marker = Marker(self._tokens, [*used, self.source])
            variables = {name: marker.marked(value) for name, value in variables.items()}
            checked = [
                marker.marked(message, self._left_to_assistant if message["role"] == "assistant" else ()) for message in checked
            ]
        variables = {"tools": None, "documents": None, **variables, **self._specials}
        variables["add_generation_prompt"] = add_generation_prompt
        deadline = time.monotonic() + timeout
        text, error = self._attempt(checked, variables, timeout)
        if error is not None:
            raise self._failure(checked, variables, error, deadline, marker.cleaned if marker else str) from None
        if marker is None:
            return RenderedPrompt(text, ())
        return RenderedPrompt(*marker.recovered(text))

    def _variables(self, template_args: Mapping[str, Any] | None) -> dict[str, Any]:
        given = {} if template_args is None else template_args
        if not isinstance(given, Mapping):
            raise InvalidRequestError(f"template_args is of type {type(given).__name__}; expected a dict")
        variables: dict[str, Any] = plain_data(given, "template_args")
        taken = sorted(variables.keys() & {"messages", "add_generation_prompt", "bos_token", "eos_token", *self._specials})
        if taken:
            raise InvalidRequestError(f"template_args may not set {', '.join(taken)}: the template gets it from elsewhere")
        return variables

    def _content(self, message: dict[str, Any]) -> Any:
        """The content as the template takes it: a list of parts, or their text joined."""
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            return content
        takes_parts = self._takes_parts.get(role)
        if takes_parts is None:
            takes_parts = self._writes_parts(role)
            if len(self._takes_parts) < _MAX_ROLES:
                self._takes_parts[role] = takes_parts
        return content if takes_parts else "".join(part["text"] for part in content)

    def _writes_parts(self, role: str) -> bool:
        """Whether the template writes the text of each part of a list, and nothing else of it."""
        texts = ["first part", "second part"]
        probe: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
        other = {"role": "user", "content": "Hello"}
        messages = [probe, other] if role == "system" else [probe] if role == "user" else [other, probe]
        variables = {"tools": None, "documents": None, **self._specials, "add_generation_prompt": False}
        text, error = self._attempt(messages, variables, TIMEOUT)
        written = error is None and all(part in text for part in texts)
        return written and not any(quote + texts[0] in text for quote in "'\"")  # quoted: the list was written as it is

    def _attempt(
        self, messages: list[dict[str, Any]], variables: Mapping[str, Any], seconds: float
    ) -> tuple[str, Exception | None]:
        try:
            meter = Meter([messages, list(variables.values())], seconds)
            with _environment.metered(meter):
                context = self._template.new_context({**variables, "messages": messages})
                text = _environment.concat(self._template.root_render_func(context))
            text.encode()  # a template can write half of a surrogate pair
        except Exception as error:
            return "", error
        return text, None

    def _failure(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        error: Exception,
        deadline: float,
        cleaned: Callable[[str], str],
    ) -> TemplateError:
        if isinstance(error, LimitError | MemoryError):
            return TemplateError(f"the chat template was stopped: {str(error) or 'it ran out of memory'}")
        index = self._at_fault(messages, variables, error, deadline)
        subject = "the messages" if index is None else f"messages[{index}]"
        said = cleaned(str(error))[:_MAX_REASON].encode(errors="backslashreplace").decode()
        if isinstance(error, Refusal):
            return TemplateError(f"the chat template refuses {subject}: {said}")
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        line = f" in line {self._template.get_corresponding_lineno(lines[-1] or 0)}" if lines else ""
        return TemplateError(f"the chat template fails on {subject}{line}: {type(error).__name__}: {said}")

    def _at_fault(
        self, messages: list[dict[str, Any]], variables: Mapping[str, Any], error: Exception, deadline: float
    ) -> int | None:
        """The message without which the ones before it do not fail in this way, by bisection; None if time ran out."""
        sound, failing = 0, len(messages)
        while failing - sound > 1:
            middle = (sound + failing) // 2
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            _, other = self._attempt(messages[:middle], variables, left)
            if type(other) is type(error) and str(other) == str(error):
                failing = middle
            else:
                sound = middle
        return failing - 1


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under each name that templates read it by."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _searched_texts(tree: nodes.Template) -> Iterator[str]:
    """The constants a template compares with, looks for, splits on or replaces, also by way of a variable."""
    constants: dict[str, list[str]] = {}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and isinstance(assign.node, nodes.Const):
            constants.setdefault(assign.target.name, []).append(str(assign.node.value))
    operands: list[nodes.Expr] = []
    for compare in tree.find_all(nodes.Compare):
        operands += [compare.expr, *(operand.expr for operand in compare.ops)]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SEARCHES:
            operands += call.args
    for edit in tree.find_all(nodes.Filter):
        if edit.name in ("replace", "trim"):
            operands += edit.args
    for operand in operands:
        if isinstance(operand, nodes.Const) and isinstance(operand.value, str):
            yield operand.value
        elif isinstance(operand, nodes.Name):
            yield from constants.get(operand.name, ())


def template_only_prefix(template: ChatTemplate) -> str:
    """What the template writes before the first character of a user message; ``""`` if it refuses a single one."""
    try:
        texts = [template.render([{"role": "user", "content": content}]).text for content in ("a", "b")]
    except InvalidRequestError:
        return ""
    return "".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
