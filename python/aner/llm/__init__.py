"""Local language models: ``load`` a GGUF, then ``generate``, ``stream``, or derive tuned leases from it; ``inspect`` says what a
file is without loading it."""

from __future__ import annotations

from aner.llm._inspect import inspect
from aner.llm._load import load
from aner.llm._model import Model
from aner.llm._profile import Profile
from aner.llm._response import Response, TokenLogprob, TopLogprob
from aner.llm._stream import Stream

__all__ = ["Model", "Profile", "Response", "Stream", "TokenLogprob", "TopLogprob", "inspect", "load"]
