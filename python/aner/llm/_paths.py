"""Paths of local files: the only place that models and adapters come from."""

from __future__ import annotations

import os

from aner.errors import ConfigurationError, ModelNotFoundError
from aner.llm._options import utf8


def local_path(path: str | os.PathLike[str]) -> bytes:
    """``path`` for the native core. ConfigurationError for another type, ModelNotFoundError for what names no local file."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise ConfigurationError(f"path must be a str or a path, it is {path!r:.100}") from None
    if not isinstance(text, str):
        raise ConfigurationError(f"path must be a str or a path, it is {path!r:.100}")
    if "://" in text:
        raise ModelNotFoundError(f"{text} is not a local file: aner never downloads; fetch it first and give its path")
    if not text or "\0" in text:
        raise ModelNotFoundError(f"{text!r} is not the path of a file")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        utf8("path", text)
        raise
