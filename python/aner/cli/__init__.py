"""The ``aner`` command. It is the only part of aner that prints: answers and JSON on stdout, everything else on stderr."""

from __future__ import annotations

from aner.cli._app import main

__all__ = ["main"]
