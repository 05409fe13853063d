"""Hands the engine's log lines to the ``aner`` logger. The engine itself never prints."""

from __future__ import annotations

import logging

import aner_native

_logger = logging.getLogger("aner.engine")
_LEVELS = (logging.DEBUG, logging.DEBUG, logging.WARNING, logging.ERROR)


def flush_engine_log(*, repeated: bool = True) -> None:
    """Log what the engine wrote since the last call; its INFO is our DEBUG, it is very talkative.

    repeated: False logs each line once, after work that was the same many times.
    """
    lines = aner_native.drain_log()
    for level, text in lines if repeated else dict.fromkeys(lines):
        _logger.log(_LEVELS[level], "%s", text)
