"""Local language models: ``load`` a GGUF, then ``generate``, ``stream``, or derive tuned leases from it; ``inspect`` says what a
file is without loading it."""

from __future__ import annotations

from typing import Any

from aner.llm._inspect import inspect
from aner.llm._load import load
from aner.llm._model import Model
from aner.llm._profile import OptimizerProfile, Profile
from aner.llm._response import Response, TokenLogprob, TopLogprob
from aner.llm._session import Session
from aner.llm._stream import Stream

__all__ = [
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
    "with_optimizer",
]


def with_optimizer(model: Model, *settings: Any, **named: Any) -> Model:
    """The same as ``model.with_optimizer(...)``."""
    return model.with_optimizer(*settings, **named)
