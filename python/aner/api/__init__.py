"""Serve models over HTTP: our own ``/chat``, endpoints for OpenAI clients, health and metrics, every bound set beforehand.

from aner import api, llm

model = llm.load("model.gguf").with_optimizer().with_batching(4)
api.app("Local inference").llm(path="/chat", model=model).bind(host="127.0.0.1", port=11435).serve()
"""

from __future__ import annotations

from aner.api._app import App
from aner.api._settings import Limits

__all__ = ["App", "Limits", "app"]


def app(name: str) -> App:
    """An application without a model yet; each builder returns a new one."""
    return App(name)
