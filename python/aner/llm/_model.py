"""``Model``: a lease of resident weights with one immutable profile."""
# Over its ceiling of 300 lines: it is the one public class, and its docstrings are the reference.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import aner_native

from aner._logging import flush_engine_log
from aner.errors import ClosedError, ConfigurationError, ForkedProcessError, InvalidRequestError
from aner.llm._async_stream import AsyncStream
from aner.llm._figures import Figures, memory_figures
from aner.llm._options import native_options, token_ids, utf8
from aner.llm._paths import local_path
from aner.llm._profile import (
    UNSET,
    OptimizerProfile,
    Profile,
    native_settings,
    optimizer_profile,
    small_integer,
    step_target_ns,
)
from aner.llm._prompt import Prompter
from aner.llm._response import Response
from aner.llm._session import Session
from aner.llm._stream import Stream, refuse_reentry, run_with_callback, started

__all__ = ["OPERATIONS", "Model"]

#: The names that ``Model.supports`` knows.
OPERATIONS = (
    "generate", "stream", "chat", "session", "adapter", "optimizer", "context_pool", "prefix_reuse", "speculation",
    "continuous_batching",
)  # fmt: skip


class Model:
    """One lease: resident weights that it may share with others, an immutable profile, one caller at a time.

    Made by ``llm.load`` and by the builders of another lease. A context manager; ``close()`` may come at any time, from any
    thread: requests that were accepted finish, the weights go with the last lease that uses them.
    """

    def __init__(
        self,
        native: aner_native.NativeLease,
        *,
        chat_template: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        prompter: Prompter | None = None,
    ) -> None:
        self._native: aner_native.NativeLease | None = native
        self._prompter = prompter or Prompter(native, chat_template, template_args)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        raw: bool = False,
        on_text: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Response:
        """Run one request to its end.

        prompt: a user message for the chat template; with ``raw=True``, or on a model without a template, the text itself, in
            which control tokens are only text; or token ids, taken as they are.
        messages: the whole conversation instead, as ``{"role": ..., "content": ...}``, rendered by the template.
        on_text: called with each piece of text on this thread; its exception cancels the request and passes on.
        options: max_tokens=256, temperature=0.0, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty,
            penalty_window, logit_bias, seed, stop, stop_token_ids, min_tokens, ignore_eos, logprobs, timeout (seconds); see
            docs/generation.md.

        Raises InvalidRequestError, ContextFullError, TemplateError, BusyError, RequestTimeoutError, CancelledError, ClosedError,
        EngineError. Ctrl-C cancels the request within one step.
        """
        if on_text is not None and not callable(on_text):
            raise InvalidRequestError(f"on_text must be callable, it is {on_text!r:.100}")
        scheduler = self._require().scheduler()
        stream = self.start(prompt, messages=messages, raw=raw, **options)
        try:
            return stream.response() if on_text is None else run_with_callback(stream, on_text, scheduler)
        finally:
            stream.close()

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        raw: bool = False,
        **options: Any,
    ) -> Stream:
        """Start one request and iterate its text; arguments as in ``generate``. The request ends when the loop is left."""
        return self.start(prompt, messages=messages, raw=raw, **options)

    def start(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        raw: bool = False,
        **options: Any,
    ) -> Stream:
        """Start one request and return its handle, to be read, asked for its ``response()``, or cancelled."""
        clock = aner_native.Clock()
        native = self._require()
        refuse_reentry(native.scheduler())
        checked = native_options(options)
        tokens, measured = self._prompter.tokens(native, prompt, messages, raw)
        return started(lambda: native.start(tokens, checked, clock, measured), native.piece, checked["logprobs"] >= 0)

    def astream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        raw: bool = False,
        **options: Any,
    ) -> AsyncStream:
        """The same for asyncio: ``async for piece in ...``, which starts the request; arguments as in ``generate``.

        On a batching lease no thread waits for it, and one event loop serves many; each needs a lease of its own (``siblings``).
        On any other lease each step runs in the loop's default executor.
        """
        batched = self._require().scheduler() != 0
        return AsyncStream(lambda: self.start(prompt, messages=messages, raw=raw, **options), batched)

    async def agenerate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        raw: bool = False,
        **options: Any,
    ) -> Response:
        """``generate`` for asyncio, as ``astream``; cancelling the task cancels the request."""
        return await self.astream(prompt, messages=messages, raw=raw, **options).response()

    # -- tokens --------------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_bos: bool = False, control: bool = False) -> list[int]:
        """Token ids of ``text``. ``control``: texts of control tokens become those tokens; ``add_bos``: if the model wants one."""
        return self._require().tokenize(utf8("text", text), bool(add_bos), bool(control), [])

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids; control tokens have none, an incomplete character becomes U+FFFD."""
        native = self._require()
        checked = token_ids("ids", ids)
        try:
            return b"".join(map(native.piece, checked)).decode("utf-8", "replace")
        except IndexError as error:
            raise InvalidRequestError(f"{error}: it has {native.vocabulary()['tokens']}") from None

    # -- builders ------------------------------------------------------------------------------------------------------------

    def with_optimizer(
        self,
        threads: int | OptimizerProfile = UNSET,
        prefill_threads: int = UNSET,
        batch_tokens: int = UNSET,
        micro_batch_tokens: int = UNSET,
        prefix_cache_entries: int = UNSET,
        prefix_cache_tokens: int = UNSET,
        speculative_tokens: int = UNSET,
    ) -> Model:
        """A lease with these settings, the same weights and adapters, and a fresh pool of contexts; this one stays as it is.

        Any keyword order, but a later setting needs all before it; or one OptimizerProfile, whose docstring has the ranges and
        defaults. Raises ConfigurationError, UnsupportedCombinationError (prefix reuse or speculation on a recurrent model).
        """
        given = (
            threads, prefill_threads, batch_tokens, micro_batch_tokens, prefix_cache_entries, prefix_cache_tokens,
            speculative_tokens,
        )  # fmt: skip
        native = self._require()
        settings = native_settings(optimizer_profile(given), native.info()["context"])
        try:
            return Model(native.with_optimizer(settings), prompter=self._prompter)
        finally:
            flush_engine_log()

    def with_adapter(self, path: str | os.PathLike[str], scale: float = 1.0) -> Model:
        """A lease with one more LoRA adapter (GGUF), applied with ``scale``; at most four. Everything else as in this lease.

        Raises AdapterError when the adapter is damaged, belongs to another base, or would not be applied whole.
        """
        native = self._require()
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise ConfigurationError(f"scale must be a number, it is {scale!r:.100}")
        try:
            return Model(native.with_adapter(local_path(path), float(scale)), prompter=self._prompter)
        finally:
            flush_engine_log()

    def with_context_pool(self, max_idle: int) -> Model:
        """A lease like this one with a fresh pool that keeps at most ``max_idle`` (0..4) idle contexts."""
        max_idle = small_integer("max_idle", max_idle, 4)
        native = self._require()
        try:
            return Model(native.with_context_pool(max_idle), prompter=self._prompter)
        finally:
            flush_engine_log()

    def with_batching(self, max_sequences: int, *, step_target_ms: float = 250) -> Model:
        """A lease whose siblings run together, in one context with ``max_sequences`` (1..256) slots of this lease's context each.

        step_target_ms: while a sequence decodes, a step takes as many prompt rows as are predicted to fit in this time, so that
            a long prompt does not stall the others; 0: as many as ``batch_tokens`` holds. docs/batching.md.

        Raises ConfigurationError (batch_tokens below max_sequences), UnsupportedCombinationError (a profile with prefix reuse or
        speculation), OutOfMemoryError. The lease refuses every builder.
        """
        settings = small_integer("max_sequences", max_sequences, 256), step_target_ns(step_target_ms)
        native = self._require()
        try:
            return Model(native.with_batching(*settings), prompter=self._prompter)
        finally:
            flush_engine_log()

    def session(self) -> Session:
        """A conversation that keeps its own context across turns, with this lease's settings; configure before you make one."""
        native = self._require()
        try:
            return Session(native.native_stateless(), native.session(), self._prompter)
        finally:
            flush_engine_log()

    def native_stateless(self) -> Model:
        """A sibling lease: a caller of its own, the same weights, profile and pool."""
        return Model(self._require().native_stateless(), prompter=self._prompter)

    def siblings(self, n: int) -> list[Model]:
        """``n`` siblings, for as many callers at a time."""
        return [self.native_stateless() for _ in range(n)]

    # -- what it is ----------------------------------------------------------------------------------------------------------

    def device(self) -> str:
        """What was resolved: ``cpu``, ``cuda:0``, ``metal``, ``vulkan:0``."""
        return str(self._require().info()["device"])

    def fingerprint(self) -> str:
        """SHA-256 of the model's content, in hexadecimal; derived leases keep it."""
        return str(self._require().info()["fingerprint"])

    def adapters(self) -> list[Figures]:
        """The effective adapters in order: path, fingerprint (SHA-256 of the content) and scale."""
        return [Figures(one) for one in self._require().adapters()]

    def profile(self) -> Profile:
        """The frozen settings of this lease."""
        settings = self._require().profile()
        step_target_ns = settings.pop("step_target_ns")
        return Profile(**settings, step_target_ms=step_target_ns / 1e6 if step_target_ns >= 0 else -1)

    def load_summary(self) -> Figures:
        """Durations (ns) and bytes of the load: both digest passes, the engine's own load, the total; -1 for what was not needed."""
        return Figures(self._require().load_summary())

    def metadata(self) -> Figures:
        """Facts of the model: architecture, context, vocabulary, heads, real tensor types, template."""
        return Figures(self._require().info())

    def memory_summary(self) -> Figures:
        """Bytes by scope, and the policies that decide them; -1 for what is not known (docs/memory.md)."""
        native = self._require()
        return memory_figures(native.info(), native.context(), max(1, native.profile()["max_sequences"]))

    def supports(self, operation: str) -> bool:
        """Whether this lease can do ``operation`` now: one of OPERATIONS, else ValueError. A closed lease supports nothing."""
        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation {operation!r:.100}: the operations are {', '.join(OPERATIONS)}")
        native = self._native
        if native is None or native.foreign():
            return False
        if operation == "chat":
            return self._prompter.has_template
        batches = native.scheduler() != 0
        if operation == "continuous_batching" or batches:
            return batches and operation in {"continuous_batching", "generate", "stream"}
        if operation in {"prefix_reuse", "speculation"}:
            profile = native.profile()
            return profile["prefix_cache_entries" if operation == "prefix_reuse" else "speculative_tokens"] > 0
        if operation == "session":
            return self._prompter.has_template
        return operation in {"generate", "stream", "context_pool", "optimizer", "adapter"}

    # -- lifetime ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up this lease. Idempotent; accepted requests and other leases are not harmed."""
        self._native = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _require(self) -> aner_native.NativeLease:
        native = self._native
        if native is None:
            raise ClosedError("this model handle was closed: load the model again, or keep the handle open while you use it")
        if native.foreign():
            raise ForkedProcessError(
                "this model was loaded before the process forked: load it again in the child, or use the 'spawn' start method"
            )
        return native

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Model cannot be pickled, copied or sent to another process: load it there, or call native_stateless()"
        )

    def __repr__(self) -> str:
        if self._native is None:
            return "<Model closed>"
        info = self._native.info()
        return f"<Model {info['name'] or info['architecture']} on {info['device']}, context {info['context']}>"
