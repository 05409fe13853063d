"""What test_lifecycle.py runs in processes that fork."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from aner import llm
from tests.engine.lifecycle_children import PROMPT, outcome_of


def in_fork(work: Callable[[], list[str]], limit: float = 20.0) -> dict[str, Any]:
    """Run ``work`` in a forked child that leaves by sys.exit: its answers, its status, and how many seconds it took."""
    reading, writing = os.pipe()
    before = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(int(limit))
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            pipe.write("\n".join(work()))
        sys.exit(0)  # not _exit: destructors and exit handlers run
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answers = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return {"answers": answers, "status": status, "seconds": time.monotonic() - before}


def calls_of(model: llm.Model) -> dict[str, Callable[[], object]]:
    """Every public method that a lease can be asked, with harmless arguments."""
    return {
        "generate": lambda: model.generate(PROMPT, max_tokens=1),
        "generate nothing": lambda: model.generate(PROMPT, max_tokens=0),
        "stream": lambda: model.stream(PROMPT),
        "start": lambda: model.start(PROMPT),
        "tokenize": lambda: model.tokenize("x"),
        "detokenize": lambda: model.detokenize([5]),
        "with_context_pool": lambda: model.with_context_pool(1),
        "with_optimizer": lambda: model.with_optimizer(1),
        "with_adapter": lambda: model.with_adapter("x.gguf"),
        "with_batching": lambda: model.with_batching(2),
        "native_stateless": lambda: model.native_stateless(),
        "siblings": lambda: model.siblings(2),
        "astream": lambda: model.astream(PROMPT),
        "agenerate": lambda: asyncio.run(model.agenerate(PROMPT)),
        "session": lambda: model.session(),
        "device": model.device,
        "fingerprint": model.fingerprint,
        "profile": model.profile,
        "load_summary": model.load_summary,
        "metadata": model.metadata,
        "memory_summary": model.memory_summary,
        "adapters": lambda: model.adapters(),
    }


def fork_after_a_request(path: str) -> dict[str, Any]:
    model = llm.load(path, context=256)
    expected = model.generate(PROMPT, max_tokens=5).token_ids()
    calls = calls_of(model)
    missing = {name for name in dir(model) if not name.startswith("_")} - set(calls) - {"supports", "close"}

    def child() -> list[str]:
        answers = [f"{name}: {outcome_of(call)}" for name, call in calls.items()]
        answers.append(f"supports: {outcome_of(lambda: model.supports('generate'))}")
        with model:
            pass
        return answers

    forked = in_fork(child)
    return {**forked, "missing": sorted(missing), "parent": model.generate(PROMPT, max_tokens=5).token_ids() == expected}


def fork_in_the_middle_of_a_stream(path: str) -> dict[str, Any]:
    model = llm.load(path, context=256)
    whole = model.generate(PROMPT, max_tokens=30).text()
    stream = model.start(PROMPT, max_tokens=30)
    pieces = [next(stream), next(stream)]

    def child() -> list[str]:
        answers = [outcome_of(lambda: next(stream)), outcome_of(stream.response), outcome_of(lambda: list(stream))]
        stream.cancel()
        stream.close()
        return answers

    forked = in_fork(child)
    return {**forked, "parent": "".join([*pieces, *stream]) == whole}


def fork_while_other_threads_are_in_the_engine(path: str) -> dict[str, Any]:
    model = llm.load(path, context=4096)
    sibling = model.native_stateless()
    stream = sibling.start(PROMPT, max_tokens=800, ignore_eos=True)
    reader = threading.Thread(target=stream.response, daemon=True)
    reader.start()
    time.sleep(0.02)

    def child() -> list[str]:
        stream.cancel()
        answers = [outcome_of(lambda: model.generate(PROMPT)), outcome_of(stream.response)]
        fresh = llm.load(path, context=64)
        return [*answers, str(len(fresh.generate(PROMPT, max_tokens=3, ignore_eos=True).token_ids()))]

    forked = in_fork(child)
    reader.join()
    return {**forked, "parent": len(stream.response().token_ids()) == 800}


def fork_in_a_progress_callback(path: str) -> dict[str, Any]:
    forked: dict[str, Any] = {}

    def progress(phase: str, fraction: float) -> None:
        if not forked:
            forked["pending"] = True
            forked.update(in_fork(lambda: ["in the callback"]))

    model = llm.load(path, progress=progress)
    return {**forked, "parent": len(model.generate(PROMPT, max_tokens=3, ignore_eos=True).token_ids()) == 3}


def fork_and_return_from_a_progress_callback(path: str) -> dict[str, Any]:
    """The child leaves the callback and so comes back to a load whose thread stayed in the parent."""
    reading, writing = os.pipe()
    children: list[int] = []

    def progress(phase: str, fraction: float) -> None:
        if not children:
            children.append(os.fork())

    answer = outcome_of(lambda: llm.load(path, progress=progress))
    if children[0] == 0:
        os.write(writing, answer.encode())
        sys.exit(0)
    os.close(writing)
    _, status = os.waitpid(children[0], 0)
    return {"answers": [os.read(reading, 1000).decode()], "status": status, "parent": answer.startswith("<Model")}


def _load_and_generate(path: str, inherited: llm.Model, results: Any) -> None:
    model = llm.load(path, context=256)
    results.put((model.generate(PROMPT, max_tokens=5).token_ids(), outcome_of(lambda: inherited.generate(PROMPT))))


def multiprocessing_fork(path: str) -> dict[str, Any]:
    model = llm.load(path, context=256)
    expected = model.generate(PROMPT, max_tokens=5).token_ids()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=_load_and_generate, args=(path, model, results)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [results.get() for _ in children]
    for child in children:
        child.join(20)
    return {
        "same": all(tokens == expected for tokens, _ in answers), "answers": [said for _, said in answers],
        "codes": [child.exitcode for child in children], "parent": model.generate(PROMPT, max_tokens=5).token_ids() == expected,
    }  # fmt: skip
