"""The ``aner`` command at a terminal: chat, progress bars, Ctrl-C and Ctrl-D, and text that must not control the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import llm
from tests.support.terminal import Terminal

Synthetic = Callable[[str], Path]

CTRL_C, CTRL_D, LEFT, UP = "\x03", "\x04", "\x1b[D", "\x1b[A"


def chat(path: Path, folder: Path, *options: str) -> Terminal:
    terminal = Terminal(["-m", "aner", "chat", str(path), "--reproducible", *options], cwd=folder)
    terminal.wait_for("> ")
    return terminal


def saved(terminal: Terminal, folder: Path, name: str) -> list[dict[str, str]]:
    terminal.send(f"/save {name}\n")
    terminal.wait_for(f"messages in {name}")
    terminal.wait_for("> ")
    messages: list[dict[str, str]] = json.loads((folder / name).read_text())["messages"]
    return messages


def say(terminal: Terminal, text: str) -> None:
    terminal.send(text + "\n")
    terminal.wait_for("\n> ")


def conversation(model: llm.Model, texts: list[str], system: str | None = None) -> list[dict[str, str]]:
    """The same conversation held by way of the library."""
    messages = [{"role": "system", "content": system}] if system else []
    for text in texts:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": model.generate(messages=messages, max_tokens=12).text()})
    return messages


def test_chat_sends_the_whole_history_and_its_commands_change_it(
    synthetic: Synthetic, model: llm.Model, tmp_path: Path
) -> None:
    with chat(synthetic("llama"), tmp_path, "--context", "512", "--max-tokens", "12") as terminal:
        say(terminal, "Hello")
        say(terminal, "And then?")
        assert saved(terminal, tmp_path, "two.json") == conversation(model, ["Hello", "And then?"])
        say(terminal, "/reset")
        say(terminal, "/system Be brief.")
        say(terminal, "Hello")
        assert saved(terminal, tmp_path, "fresh.json") == conversation(model, ["Hello"], "Be brief.")
        terminal.send("/save fresh.json\n")
        terminal.wait_for("exists")
        terminal.send("/timings\n")
        terminal.wait_for("prefill_duration")
        cached = terminal.wait_for("evaluated_input_tokens").split("cached_input_tokens")[1].split()[0]
        assert int(cached) > 0  # the system message was in the context already
        terminal.wait_for("tokens/s")
        terminal.send("/nonsense\n")
        terminal.wait_for("/nonsense is not a command")
        terminal.send("/help\n")
        terminal.wait_for("/system TEXT")
        terminal.send("/exit\n")
        assert terminal.finish() == 0


def test_a_line_can_be_edited_and_recalled_and_ctrl_d_leaves(synthetic: Synthetic, tmp_path: Path) -> None:
    with chat(synthetic("llama"), tmp_path, "--context", "512", "--max-tokens", "4") as terminal:
        say(terminal, "Heo" + LEFT + "ll")
        terminal.send(UP)
        terminal.wait_for("Hello")
        say(terminal, "!")
        assert [m["content"] for m in saved(terminal, tmp_path, "edited.json") if m["role"] == "user"] == ["Hello", "Hello!"]
        terminal.send(CTRL_D)
        assert terminal.finish() == 0


@pytest.mark.contract("Z4")
def test_ctrl_c_stops_the_answer_and_nothing_else(synthetic: Synthetic, tmp_path: Path) -> None:
    options = ("--context", "60000", "--max-tokens", "50000", "--ignore-eos", "--stop-token-id", "5")
    with chat(synthetic("llama"), tmp_path, *options) as terminal:
        terminal.send("Hello\n")
        terminal.wait_for("Hello\r\n")
        terminal.wait_for_more(20)
        terminal.send(CTRL_C)
        terminal.wait_for("(stopped")
        terminal.wait_for("> ")
        assert saved(terminal, tmp_path, "none.json") == []
        terminal.send("half a line" + CTRL_C)
        terminal.wait_for("(Ctrl-D or /exit leaves)")
        terminal.wait_for("> ")
        terminal.send(CTRL_D)
        assert terminal.finish() == 0


@pytest.mark.contract("L15")
def test_a_full_context_is_said_and_loses_nothing(synthetic: Synthetic, tmp_path: Path) -> None:
    with chat(synthetic("llama"), tmp_path, "--context", "128", "--max-tokens", "4") as terminal:
        say(terminal, "Hello")
        before = saved(terminal, tmp_path, "before.json")
        terminal.send("x" * 200 + "\n")
        said = terminal.wait_for("\n> ")
        assert "the context is full" in said
        assert "/save FILE" in said
        assert "/reset" in said
        assert "--context" in said
        assert saved(terminal, tmp_path, "after.json") == before != []
        say(terminal, "/reset")
        say(terminal, "Again")
        assert next(m["content"] for m in saved(terminal, tmp_path, "again.json")) == "Again"
        terminal.send("/exit\n")
        assert terminal.finish() == 0


@pytest.mark.contract("L5")
def test_progress_is_drawn_on_a_terminal_and_json_stays_pure(synthetic: Synthetic, tmp_path: Path) -> None:
    for command in (["info"], ["generate", "Hello", "--max-tokens", "2"]):
        arguments = ["-m", "aner", command[0], str(synthetic("llama")), *command[1:], "--json"]
        with (tmp_path / "out.json").open("wb") as out, Terminal(arguments, stdout=out) as terminal:
            assert terminal.finish() == 0
            assert "100%" in terminal.seen
            assert "digest" in terminal.seen or "context" in terminal.seen
        assert json.loads((tmp_path / "out.json").read_text())["fingerprint"]


@pytest.mark.contract("Z4")
def test_ctrl_c_while_loading_ends_with_130(tmp_path: Path, demo_model_path: Path) -> None:
    arguments = ["-m", "aner", "generate", str(demo_model_path), "Hello", "--max-tokens", "2000", "--ignore-eos"]
    with Terminal(arguments, cwd=tmp_path) as terminal:
        terminal.wait_for("digest")
        terminal.send(CTRL_C)
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.seen


def test_a_model_cannot_control_the_terminal(synthetic: Synthetic) -> None:
    escape = 3 + 0x1B  # this vocabulary's token for the byte
    arguments = [
        "-m",
        "aner",
        "generate",
        str(synthetic("llama")),
        "Hello",
        "--max-tokens",
        "3",
        "--logit-bias",
        f"{escape}=100",
    ]
    with Terminal(arguments) as terminal:
        assert terminal.finish() == 0
        assert terminal.seen.endswith("\ufffd\ufffd\ufffd\r\n")


def test_generate_without_a_prompt_at_a_keyboard_asks_for_one(synthetic: Synthetic) -> None:
    with Terminal(["-m", "aner", "generate", str(synthetic("llama"))]) as terminal:
        assert terminal.finish() == 2
        assert "PROMPT" in terminal.seen
