"""Sessions: their own KV across turns, rollback, and what they refuse (contract section C)."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import BusyError, CancelledError, ClosedError, ContextFullError, SnapshotError, UnsupportedOperationError, llm
from tests.support import gguf_files

Synthetic = Callable[[str], Path]


def turns(model: llm.Model, session: llm.Session, texts: list[str], budget: int = 12) -> None:
    """Every turn answers as a stateless request over the same messages would."""
    for text in texts:
        messages = [*session.history(), {"role": "user", "content": text}]
        expected = model.generate(messages=messages, max_tokens=budget)
        response = session.generate(text, max_tokens=budget)
        assert response.token_ids() == expected.token_ids()
        assert session.history() == [*messages, {"role": "assistant", "content": response.text()}]


@pytest.mark.contract("C1", "V1")
@pytest.mark.parametrize("name", ["llama", "llama-q8", "gemma3"])
def test_turns_answer_as_stateless_requests_and_keep_what_they_share(synthetic: Synthetic, name: str) -> None:
    with llm.load(synthetic(name), context=512, reproducible=True) as model, model.session() as session:
        turns(model, session, ["hello", "what was that?", "and now?"])
        response = session.generate("one more", max_tokens=2)
        timings = response.timings()
        assert timings["cached_input_tokens"] > timings["input_tokens"] // 2
        assert timings["cached_input_tokens"] + timings["evaluated_input_tokens"] == timings["input_tokens"]


@pytest.mark.contract("C1")
def test_a_session_borrows_nothing_from_a_pool(model: llm.Model) -> None:
    tuned = model.with_optimizer(llm.OptimizerProfile(prefix_cache_entries=1))
    tuned.generate("hello", max_tokens=2)
    before = dict(tuned.memory_summary())
    with tuned.session() as session:
        assert session.generate("hello", max_tokens=2).timings()["cached_input_tokens"] == 0
    assert dict(tuned.memory_summary()) == before


@pytest.mark.contract("C2", "Z6")
def test_a_failed_or_cancelled_turn_leaves_history_and_memory_as_they_were(model: llm.Model) -> None:
    with model.session() as session, model.session() as undisturbed:
        for one in (session, undisturbed):
            one.generate("hello", max_tokens=8)
        history = session.history()
        stream = session.stream("never answered", max_tokens=50)
        next(stream, None)
        stream.cancel()
        with pytest.raises(CancelledError):
            stream.response()
        with pytest.raises(ZeroDivisionError):
            session.generate("nor this", max_tokens=9, on_text=lambda text: 1 // 0)
        assert session.history() == history
        after, expected = (one.generate("again", max_tokens=8) for one in (session, undisturbed))
        assert after.token_ids() == expected.token_ids()
        assert after.timings()["cached_input_tokens"] == expected.timings()["cached_input_tokens"]


@pytest.mark.contract("C3")
def test_a_turn_that_does_not_fit_says_both_counts_and_drops_nothing(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=64, reproducible=True) as model, model.session() as session:
        session.generate("hi", max_tokens=4)
        history = session.history()
        with pytest.raises(ContextFullError, match=r"\d+ tokens and the context holds 64"):
            session.generate("far too long " * 8, max_tokens=4)
        assert session.history() == history
        session.generate("ok", max_tokens=2)


@pytest.mark.contract("C2", "O8")
def test_a_session_rejects_reconfiguration(model: llm.Model) -> None:
    with model.session() as session:
        for builder in ("with_optimizer", "with_context_pool", "with_adapter", "with_batching", "session"):
            with pytest.raises(UnsupportedOperationError, match="rejects reconfiguration"):
                getattr(session, builder)(1)
    assert model.with_context_pool(1).supports("generate")


@pytest.mark.contract("C1", "Z1", "E5")
def test_reset_forgets_close_ends_and_one_turn_runs_at_a_time(model: llm.Model) -> None:
    session = model.session()
    session.generate("hello", max_tokens=4)
    session.reset()
    assert session.history() == []
    assert session.generate("hello", max_tokens=4).timings()["cached_input_tokens"] == 0
    running = session.stream("more", max_tokens=20)
    next(running, None)
    with pytest.raises(BusyError):
        session.generate("at the same time")
    with pytest.raises(BusyError):
        session.reset()
    session.close()
    running.response()  # an accepted turn finishes
    with pytest.raises(ClosedError):
        session.generate("closed")
    with pytest.raises(TypeError):
        pickle.dumps(session)


@pytest.mark.contract("C1", "S7")
def test_a_session_speculates_with_its_leases_profile(model: llm.Model) -> None:
    tuned = model.with_optimizer(llm.OptimizerProfile(speculative_tokens=5))
    with model.session() as plain, tuned.session() as drafting:
        for text in ("abc abc abc abc", "abc abc abc abc", "abc abc abc"):
            one, two = (session.generate(text, max_tokens=40) for session in (plain, drafting))
            assert one.token_ids() == two.token_ids()


@pytest.mark.contract("C1")
def test_a_recurrent_model_holds_a_conversation_too(synthetic: Synthetic, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    loaded = llm.load(synthetic("mamba"), context=256, reproducible=True, chat_template=template)
    with loaded as model, model.session() as session:
        turns(model, session, ["hello", "again"], budget=6)


@pytest.mark.contract("C1")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_snapshot_goes_on_where_it_was_saved_and_foreign_or_damaged_ones_change_nothing(
    synthetic: Synthetic, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "conversation.snapshot"
    with llm.load(synthetic(name), context=256, reproducible=True) as model, model.session() as session:
        session.generate("hello", max_tokens=6)
        session.save(path)
        with llm.restore_session(model, path) as restored:
            assert restored.history() == session.history()
            one, two = (each.generate("and on", max_tokens=10) for each in (session, restored))
            assert one.token_ids() == two.token_ids()
            assert one.timings()["cached_input_tokens"] == two.timings()["cached_input_tokens"] > 0
        whole = path.read_bytes()
        for damage in (
            whole[:-1],
            whole[:40],
            b"",
            whole[:100] + b"X" + whole[101:],
            whole.replace(b"snapshot 1", b"snapshot 2"),
        ):
            (tmp_path / "damaged").write_bytes(damage)
            with pytest.raises(SnapshotError):
                llm.restore_session(model, tmp_path / "damaged")
        other = model.with_adapter(gguf_files.lora(tmp_path / "a.gguf")) if name == "llama" else None
        for foreign, reason in ((other, "adapters"), (llm.load(synthetic(name), context=128, reproducible=True), "context")):
            if foreign is not None:
                with pytest.raises(SnapshotError, match=reason):
                    llm.restore_session(foreign, path)


@pytest.mark.contract("C1", "E2")
def test_memory_that_the_engine_does_not_take_is_refused(model: llm.Model, tmp_path: Path) -> None:
    path = tmp_path / "conversation.snapshot"
    with model.session() as session:
        session.generate("hello", max_tokens=6)
        session.save(path)
        body = path.read_bytes()[:-32]
        start = body.index(b"\n", 30) + 1
        forged = body[:start] + body[start:-2000] + bytes(2000)  # a right digest over KV bytes that are zeroed or cut
        for content in (forged, body[:start] + bytes(len(body) - start)):
            path.write_bytes(content + hashlib.sha256(content).digest())
            with contextlib.suppress(SnapshotError):  # zeros may also be KV: what counts is that nothing dies
                llm.restore_session(model, path).close()
        assert model.generate("hello", max_tokens=4).token_ids()
