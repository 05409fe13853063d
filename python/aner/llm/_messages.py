"""Messages as a template may see them: plain data, checked, and marked where they spell a control token."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aner.errors import InvalidRequestError

MAX_NESTING = 64
MAX_VALUES = 1_000_000
# Characters that text has no use for. A control token is cut by one of them that occurs in no message and not in the template.
_MARKS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))]


def validate_messages(messages: Any) -> list[dict[str, Any]]:
    """Copy ``messages`` into plain dicts and lists; fields that are None are left out, as the reference does.

    Raises InvalidRequestError that names the place, such as ``messages[2].role``: a role is non-empty text; content is
    text or a list of text parts, and may be absent only where an assistant message has tool calls; all text is valid
    Unicode. Which roles may follow which, and every other field, is for the template to judge.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages is {_kind(messages)}; expected a list such as [{{'role': 'user', 'content': 'Hello'}}]"
        )
    if not messages:
        raise InvalidRequestError("messages is empty: at least one message is needed")
    copy = _Copier()
    return [_validated(copy, message, f"messages[{index}]") for index, message in enumerate(messages)]


def plain_data(value: Any, place: str) -> Any:
    """Copy ``value`` if it is made of text, numbers, booleans, None, lists and dicts; otherwise name the place."""
    return _Copier()(value, place)


def _validated(copy: _Copier, message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{place} is {_kind(message)}; expected a dict with 'role' and 'content'")
    plain = {key: value for key, value in copy(message, place).items() if value is not None}
    role, content = plain.get("role"), plain.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{place}.role is {_kind(role)}; expected text such as 'user'")
    if content is None and role == "assistant" and isinstance(plain.get("tool_calls"), list) and plain["tool_calls"]:
        return plain
    if isinstance(content, list) and content:
        for index, part in enumerate(content):
            _require_text_part(part, f"{place}.content[{index}]")
    elif not isinstance(content, str):
        raise InvalidRequestError(f"{place}.content is {_kind(content)}; expected text or a list of text parts")
    return plain


def _require_text_part(part: Any, place: str) -> None:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{place} is {_kind(part)}; expected {{'type': 'text', 'text': ...}}")
    if part.get("type") != "text":
        raise InvalidRequestError(f"{place}.type is {_shown(part.get('type'))}; this model takes only 'text' parts")
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{place}.text is {_kind(part.get('text'))}; expected text")


class _Copier:
    """Copies nested data into exact builtin types, within bounds and with valid text only."""

    def __init__(self) -> None:
        self._n_values = 0

    def __call__(self, value: Any, place: str, depth: int = 0) -> Any:
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise InvalidRequestError(f"{place}: more than {MAX_VALUES} values in one request")
        if depth > MAX_NESTING:
            raise InvalidRequestError(f"{place} is nested more than {MAX_NESTING} deep")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, Mapping):
            items = ((self._key(key, place), item) for key, item in value.items())
            return {key: self(item, f"{place}.{key}", depth + 1) for key, item in items}
        if isinstance(value, list | tuple):
            return [self(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
        raise InvalidRequestError(f"{place} is {_kind(value)}; expected text, a number, true, false, null, a list or a dict")

    def _key(self, key: Any, place: str) -> str:
        if not isinstance(key, str):
            raise InvalidRequestError(f"{place} has the key {_shown(key)}, which is {_kind(key)}; expected text")
        return self._text(key, f"a key of {place}")

    @staticmethod
    def _text(value: str, place: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{place} is not valid Unicode: character {error.start} is U+{ord(value[error.start]):04X}, half of a "
                "surrogate pair"
            ) from None
        return str.__str__(value)


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    return "empty" if isinstance(value, str | list) and not value else f"of type {type(value).__name__}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class ControlTokens:
    """Finds control tokens in text. Tokens of white space only are left out: templates and users write them as text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(token for token in tokens if token and not token.isspace())
        lengths: dict[str, set[int]] = {}
        for token in self._tokens:
            lengths.setdefault(token[:3], set()).add(len(token))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        first = "".join(sorted({re.escape(token[0]) for token in self._tokens}))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def at(self, text: str, start: int) -> str:
        """The longest control token that ``text`` spells from ``start`` on, or ``""``."""
        for head in (3, 2, 1):
            for length in self._lengths.get(text[start : start + head], ()):
                if text[start : start + length] in self._tokens:
                    return text[start : start + length]
        return ""

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """Every place where a control token starts, and the longest that does; they may overlap."""
        for match in self._first.finditer(text):
            token = self.at(text, match.start())
            if token:
                yield match.start(), token


def texts_of(value: Any) -> Iterator[str]:
    """All text in ``value``, keys included; the parts of a content list also joined, as templates write them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts_of(item)
        if _has_parts(value):
            yield "".join(part["text"] for part in value["content"])
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def _has_parts(value: dict[str, Any]) -> bool:
    content = value.get("content")
    return isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)


class Marker:
    """Cuts the control tokens spelled in a request with a character that cannot occur in it, and finds the cuts again."""

    def __init__(self, tokens: ControlTokens, used: Collection[str]) -> None:
        """``used``: all text of the request, and the template."""
        characters = set().union(*used)
        for mark in _MARKS:
            # Templates that write JSON or Python literals write such a character as an escape.
            escape = f"u{ord(mark):04x}"
            if mark not in characters and not any(escape in text for text in used):
                break
        else:
            raise InvalidRequestError("messages use every private character: their control-token text cannot be marked")
        self._tokens = tokens
        self._mark = mark
        self._cuts = re.compile(rf"{mark}|\\+{escape}")

    def marked(self, value: Any, exempt: Collection[str] = ()) -> Any:
        """A copy of ``value`` with a mark after the first character of every control token that is not exempt."""
        if isinstance(value, str):
            return self._marked_texts([value], exempt)[0]
        if isinstance(value, list):
            return [self.marked(item, exempt) for item in value]
        if not isinstance(value, dict):
            return value
        result = {self.marked(key, exempt): self.marked(item, exempt) for key, item in value.items()}
        if _has_parts(value):
            texts = self._marked_texts([part["text"] for part in value["content"]], exempt)
            result["content"] = [{**part, "text": text} for part, text in zip(result["content"], texts, strict=True)]
        return result

    def _marked_texts(self, texts: list[str], exempt: Collection[str]) -> list[str]:
        """Marks tokens in the joined texts, so that one which spans texts is cut too."""
        places = [start + 1 for start, token in self._tokens.found("".join(texts)) if token not in exempt]
        result, begin, next_place = [], 0, 0
        for text in texts:
            pieces, taken = [], 0
            while next_place < len(places) and places[next_place] <= begin + len(text):
                cut = places[next_place] - begin
                pieces += [text[taken:cut], self._mark]
                taken = cut
                next_place += 1
            result.append("".join([*pieces, text[taken:]]))
            begin += len(text)
        return result

    def cleaned(self, text: str) -> str:
        return self._cuts.sub("", text)

    def recovered(self, text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
        """``text`` without marks, and where it spells the control tokens that were cut, in UTF-8 bytes."""
        pieces = self._cuts.split(text)
        clean = "".join(pieces)
        spans: list[list[int]] = []
        position, n_bytes, counted = 0, 0, 0
        for piece in pieces[:-1]:
            position += len(piece)
            token = self._tokens.at(clean, position - 1) if position else ""
            if not token:
                continue  # the template wrote the text differently, or only a part of it
            n_bytes += len(clean[counted : position - 1].encode())
            counted = position - 1
            end = n_bytes + len(token.encode())
            if spans and n_bytes < spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([n_bytes, end])
        return clean, tuple((start, end) for start, end in spans)


def map_contents(messages: list[dict[str, Any]], change: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """The messages with ``change(message)`` as the content of those that have one."""
    return [{**message, "content": change(message)} if "content" in message else message for message in messages]
