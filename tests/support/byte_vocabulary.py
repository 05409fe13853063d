"""The ``spm`` vocabulary of the synthetic models by its own rule, for tests that must not ask the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

BOS, EOS, IM_START, IM_END, SPACE = 1, 2, 259, 260, 261


def ids_of(text: str) -> list[int]:
    """A token for each byte, and one of its own for the space."""
    return [SPACE if byte == 0x20 else 3 + byte for byte in text.encode()]


def bytes_of(tokens: Iterable[int]) -> bytes:
    """What tokens add to a text; control tokens add nothing."""
    return b"".join(b" " if token == SPACE else bytes([token - 3]) if 3 <= token < 259 else b"" for token in tokens)
