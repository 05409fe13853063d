"""The running side of an application: a lane for each path, its conversations, its figures."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aner.api._app import App
from aner.api._fields import PASSED_ON, Options
from aner.api._lane import Begin, Lane
from aner.api._metrics import Metrics
from aner.api._refusals import Refusal, refusal_of
from aner.api._sessions import Conversations
from aner.api._settings import ServedPath
from aner.api._work import Work
from aner.llm import Model, Response
from aner.llm._model import OPERATIONS

_logger = logging.getLogger("aner.api")
_REAP_SECONDS = 30.0


class Served:
    """One path: its model and who waits for it."""

    def __init__(self, settings: ServedPath, metrics: Metrics) -> None:
        self.settings = settings
        self.alias = settings.alias
        self.model = settings.model.native_stateless()  # for facts and tokens; requests have leases of their own
        self.fingerprint = self.model.fingerprint()
        self.lane = Lane.of(settings.model, settings.workers)
        self.conversations = Conversations(settings.sessions) if settings.sessions else None
        for lane in self.lanes():
            lane.on_cancelled = lambda seconds: metrics.cancelled(self.alias, seconds)
            lane.on_response = lambda response, waited: metrics.finished(self.alias, response, waited)

    def lanes(self) -> list[Lane]:
        return [self.lane] if self.conversations is None else [self.lane, self.conversations.lane]

    def load(self) -> dict[str, int]:
        """What it does now."""
        native = self.model._require().load()
        n_running = sum(min(len(lane.turns), lane.n_slots) for lane in self.lanes())
        n_waiting = sum(lane.n_waiting for lane in self.lanes())
        if native:
            n_running, n_waiting = native["n_running"], native["n_waiting"]
            if self.conversations is not None:
                n_running += min(len(self.conversations.lane.turns), 1)
                n_waiting += self.conversations.lane.n_waiting
        return {
            "running": n_running,
            "waiting": n_waiting,
            "slots": sum(lane.n_slots for lane in self.lanes()),
            "kv_bytes": max(0, self.model.memory_summary()["kv_bytes_per_context"]),
            "sessions": 0 if self.conversations is None else len(self.conversations),
            "steps": native["n_steps"] if native else -1,
            "last_step_ns": native["last_step"] if native else -1,
        }

    def facts(self) -> dict[str, Any]:
        context: int = self.model.metadata()["context"]
        supports = [name for name in OPERATIONS if self.model.supports(name)]
        return {
            "path": self.settings.path,
            "alias": self.alias,
            "device": self.model.device(),
            "fingerprint": self.fingerprint,
            "context": context,
            "profile": dataclasses.asdict(self.model.profile()),
            "supports": supports,
            "sessions": self.conversations is not None,
            "description": self.settings.description,
        }


class Service:
    """All paths of one application."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.metrics = Metrics(lambda: [(one.alias, one.load()) for one in self.served])
        self.served = [Served(one, self.metrics) for one in app.paths]
        self.created = int(time.time())
        self.draining = False
        self.ready = False
        self.n_requests = 0  # being answered now

    # -- requests ------------------------------------------------------------------------------------------------------------

    def by_alias(self, alias: str | None) -> Served:
        if alias is None and len(self.served) == 1:
            return self.served[0]
        for one in self.served:
            if one.alias == alias:
                return one
        names = ", ".join(one.alias for one in self.served)
        if alias is None:
            raise Refusal(400, "model_required", f"several models are served, name one: {names}", param="model")
        raise Refusal(404, "model_not_found", f"there is no model {alias[:128]!r} here: the models are {names}", param="model")

    def check_rows(self, n_rows: int, what: str, param: str) -> None:
        if n_rows > self.app.bounds.max_rows:
            raise Refusal(
                400, "too_many_rows", f"{what} is {n_rows}, at most {self.app.bounds.max_rows} are allowed", param=param
            )

    def options(self, served: Served, body: Options, max_tokens: int | None, param: str = "max_tokens") -> dict[str, Any]:
        """The options of a generation, as ``Model.start`` takes them."""
        options = {name: value for name in PASSED_ON if (value := getattr(body, name)) is not None}
        options.setdefault("temperature", served.settings.temperature)
        if max_tokens is not None and max_tokens > self.app.max_tokens:
            message = f"{param} is {max_tokens}, at most {self.app.max_tokens} are allowed here"
            raise Refusal(400, "max_tokens_exceeded", message, param=param)
        options["max_tokens"] = self.app.max_tokens if max_tokens is None else max_tokens
        if body.logit_bias:
            for key in body.logit_bias:
                if not (key.isascii() and key.isdecimal() and len(key) < 10):
                    raise Refusal(400, "invalid_request", "a key of logit_bias is not a token id", param="logit_bias")
            options["logit_bias"] = {int(key): bias for key, bias in body.logit_bias.items()}
        return options

    def work(self, lane: Lane, begins: list[Begin], deadline: float, max_tokens: int) -> Work:
        """Admit a request, or refuse it with the time after which a place is likely to be free."""
        try:
            return Work(lane, begins, deadline, max_tokens)
        except Exception as error:
            raise refusal_of(error, lane.retry_after()) from None

    def refused(self, error: Exception, retry_after: float = 1.0) -> Refusal:
        """The answer for ``error``, counted; what should not happen is logged, without its message, which may quote a request."""
        refusal = refusal_of(error, retry_after)
        self.metrics.rejections.labels(refusal.code).inc()
        if refusal.code == "internal_error":
            place = traceback.extract_tb(error.__traceback__)[-1:]
            _logger.error("a request failed: %s at %s", type(error).__name__, [f"{one.filename}:{one.lineno}" for one in place])
        return refusal

    # -- lifetime ------------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        reaper = asyncio.ensure_future(self._reap())
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            reaper.cancel()
            self.cancel_all()
            for _try in range(500):  # what still runs ends within a step
                if not any(lane.turns for lane in self._lanes()):
                    break
                await asyncio.sleep(0.01)
            self.close()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            for one in self.served:
                if one.conversations is not None:
                    one.conversations.expire()

    def _lanes(self) -> Iterator[Lane]:
        for one in self.served:
            yield from one.lanes()

    def cancel_all(self) -> None:
        self.draining = True
        for lane in self._lanes():
            lane.close()

    def close(self) -> None:
        for one in self.served:
            if one.conversations is not None:
                one.conversations.close()
            one.lane.release()
            one.model.close()


def begin_on(prompt: Any, messages: Any, raw: bool, options: dict[str, Any]) -> Begin:
    """Starts a generation on a stateless lease."""

    def start(lease: Model, timeout: float) -> Any:
        return lease.start(prompt, messages=messages, raw=raw, timeout=timeout, **options)

    return start


def timings_of(response: Response) -> dict[str, int]:
    return dict(response.timings())
