"""Local language models: ``load`` a GGUF, then ``generate``, ``stream``, or derive tuned leases from it; ``inspect`` says what a
file is and ``plan`` what it would occupy, without loading it."""

from __future__ import annotations

import os
from typing import Any

from aner.llm._async_stream import AsyncStream
from aner.llm._inspect import inspect
from aner.llm._load import load
from aner.llm._model import Model
from aner.llm._plan import plan
from aner.llm._profile import OptimizerProfile, Profile
from aner.llm._response import Response, TokenLogprob, TopLogprob
from aner.llm._session import Session
from aner.llm._stream import Stream

__all__ = [
    "AsyncStream",
    "Model",
    "OptimizerProfile",
    "Profile",
    "Response",
    "Session",
    "Stream",
    "TokenLogprob",
    "TopLogprob",
    "inspect",
    "load",
    "plan",
    "restore_session",
    "with_batching",
    "with_optimizer",
]


def with_optimizer(model: Model, *settings: Any, **named: Any) -> Model:
    """The same as ``model.with_optimizer(...)``."""
    return model.with_optimizer(*settings, **named)


def with_batching(model: Model, max_sequences: int, *, step_target_ms: float = 250) -> Model:
    """The same as ``model.with_batching(...)``."""
    return model.with_batching(max_sequences, step_target_ms=step_target_ms)


def restore_session(model: Model, path: str | os.PathLike[str]) -> Session:
    """A new session of ``model`` that goes on where ``session.save(path)`` left off.

    SnapshotError when the file is damaged or was made by another model, adapters, settings or engine; nothing is changed then.
    """
    session = model.session()
    try:
        session._restore(path)
    except BaseException:
        session.close()
        raise
    return session
