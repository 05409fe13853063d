"""The ``aner`` command, as users and scripts meet it: real processes, real pipes; the terminal is in test_cli_terminal.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aner_native
import gguf
import pytest

import aner
from aner import llm
from aner.cli._parameters import RequestOptions
from aner.llm._options import DEFAULTS
from tests.support import gguf_files

Synthetic = Callable[[str], Path]

EXACT = ("--context", "512", "--reproducible")


def run(*arguments: object, stdin: bytes | None = None, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aner", *map(str, arguments)]
    source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **source, **settings)


def output(*arguments: object, **settings: Any) -> str:
    """stdout of a command that succeeds and says nothing else."""
    done = run(*arguments, **settings)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def refusal(code: int, *arguments: object, **settings: Any) -> str:
    """The one line on stderr of a command that fails with ``code`` and gives no output."""
    done = run(*arguments, **settings)
    text = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), text
    assert text.startswith("aner"), text
    assert text.find("\n") == len(text) - 1, text
    return text


# -- --version ---------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("T6")
def test_version_names_version_engine_pin_and_backends() -> None:
    text = output("--version")
    record = json.loads(output("--version", "--json"))
    build = aner.build_info()
    assert record["version"] == "0.0.7"
    assert text.startswith("aner 0.0.7\n")
    assert record["engine"]["origin"] in {"pinned", "custom"}
    assert record["engine"]["origin"] in text
    if record["engine"]["origin"] == "pinned":
        assert (record["engine"]["version"], record["engine"]["commit"]) == ("0.5.0", "0c1e57098")
    assert f"llama.cpp {record['engine']['version']} (commit {record['engine']['commit']}" in text
    assert record["backends"] == build["backends"]
    assert "cpu" in record["backends"]
    assert f"backends  {', '.join(record['backends'])}\n" in text


def test_version_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "aner", "--version"], capture_output=True, check=True)
    imported = {line.split(b"|")[-1].strip().decode() for line in done.stderr.splitlines() if line.startswith(b"import time:")}
    assert "aner.cli" in imported
    assert not imported & {"numpy", "jinja2", "rich", "rich.console", "aner.llm", "aner.measure"}


# -- info --------------------------------------------------------------------------------------------------------------------


def test_info_agrees_with_the_file_as_another_reader_reads_it(synthetic: Synthetic) -> None:
    path = synthetic("llama-q8")
    record = json.loads(output("info", path, "--json"))
    types: dict[str, dict[str, int]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        use = types.setdefault(tensor.tensor_type.name.lower(), {"tensors": 0, "bytes": 0})
        use["tensors"] += 1
        use["bytes"] += int(tensor.n_bytes)
    assert record["tensor_types"] == types
    assert record["parameters"] == sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors)
    assert record["fingerprint"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (record["architecture"], record["context_train"]) == ("llama", 4096)
    assert "<|im_start|>" in record["chat_template"]
    text = output("info", path)
    assert record["fingerprint"] in text
    assert "<|im_start|>" in text
    assert f"{types['q8_0']['tensors']} tensors" in text


def test_info_says_when_the_name_and_the_tensors_disagree(synthetic: Synthetic, tmp_path: Path) -> None:
    for name, disagrees in (
        ("toy-Q4_K_M.gguf", True),
        ("toy.q4_k_m.gguf", True),
        ("toy-Q8_0.gguf", False),
        ("toy.gguf", False),
    ):
        path = Path(shutil.copy(synthetic("llama-q8"), tmp_path / name))
        assert bool(json.loads(output("info", path, "--json"))["name_disagrees"]) is disagrees, name
        assert ("the file's name says Q4_K_M, but of the bytes 0% are Q4_K" in output("info", path)) is disagrees


@pytest.mark.contract("T5")
def test_info_of_a_loaded_lease_tells_what_it_supports(synthetic: Synthetic) -> None:
    for name in ("llama", "llama-plain"):
        path = synthetic(name)
        lease = json.loads(output("info", path, "--load", "--context", 512, "--json"))["lease"]
        with llm.load(path, context=512) as model:
            assert lease["supports"] == {operation: model.supports(operation) for operation in lease["supports"]}
            assert lease["memory"] == dict(model.memory_summary())
        assert lease["supports"]["generate"] is True
        assert lease["supports"]["chat"] is (name == "llama")


# -- generate ----------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E4")
def test_generate_writes_the_answer_to_stdout_and_nothing_else_anywhere(synthetic: Synthetic, model: llm.Model) -> None:
    expected = model.generate("Hello", max_tokens=40, temperature=0.9, seed=11)
    options = ("Hello", *EXACT, "--max-tokens", 40, "--temperature", 0.9, "--seed", 11)
    for how in ((), ("--no-stream",)):
        assert output("generate", synthetic("llama"), *options, *how) == expected.text() + "\n"
    record = json.loads(output("generate", synthetic("llama"), *options, "--json"))
    timings = expected.timings()
    assert record["text"] == expected.text()
    assert record["output_hash"] == expected.output_hash()
    assert (record["seed"], record["finish_reason"]) == (11, expected.finish_reason())
    assert (record["input_tokens"], record["output_tokens"]) == (timings["input_tokens"], timings["output_tokens"])
    assert record["timings"].keys() == timings.keys()
    assert record["fingerprint"] == model.fingerprint()


def test_every_generation_option_is_an_option_with_the_same_default() -> None:
    assert {field: getattr(RequestOptions(), field) for field in DEFAULTS} == DEFAULTS
    help_text = output("generate", "--help", env={**os.environ, "COLUMNS": "200", "TERM": "dumb"})
    for name in DEFAULTS:
        assert f"--{name.removesuffix('s') if name == 'stop_token_ids' else name}".replace("_", "-") in help_text


def test_options_that_are_spelled_otherwise_reach_the_request(synthetic: Synthetic, model: llm.Model) -> None:
    plain = model.generate("Hello", max_tokens=20)
    first, second = plain.token_ids()[:2], plain.token_ids()[5]
    cases: list[tuple[Sequence[object], dict[str, Any]]] = [
        (
            ("--logit-bias", f"{first[0]}=-inf", "--logit-bias", f"{first[1]}=-2.5"),
            {"logit_bias": {first[0]: float("-inf"), first[1]: -2.5}},
        ),
        (("--stop-token-id", second, "--ignore-eos"), {"stop_token_ids": [second], "ignore_eos": True}),
        (("--stop", plain.text()[4:6], "--stop", "zzz"), {"stop": [plain.text()[4:6], "zzz"]}),
    ]
    for arguments, options in cases:
        expected = model.generate("Hello", max_tokens=20, **options).text()
        assert expected != plain.text()
        assert output("generate", synthetic("llama"), "Hello", *EXACT, "--max-tokens", 20, *arguments) == expected + "\n"
    record = json.loads(output("generate", synthetic("llama"), "Hello", *EXACT, "--max-tokens", 2, "--logprobs", 3, "--json"))
    logprobs = model.generate("Hello", max_tokens=2, logprobs=3).logprobs()
    assert logprobs is not None
    assert [one["token_id"] for one in record["logprobs"]] == [one.token_id for one in logprobs]
    assert record["logprobs"][0]["logprob"] == pytest.approx(logprobs[0].logprob, abs=1e-6)
    assert [top["bytes"] for top in record["logprobs"][0]["top"]] == [list(top.bytes) for top in logprobs[0].top]


def test_raw_and_another_template_change_the_prompt(synthetic: Synthetic, model: llm.Model, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}{{ tail }}")
    arguments = ("generate", synthetic("llama"), "Hello", *EXACT, "--max-tokens", 8)
    raw = model.generate("Hello", raw=True, max_tokens=8).text()
    tailed = model.generate("Hello!", raw=True, max_tokens=8).text()
    assert len({raw, tailed, model.generate("Hello", max_tokens=8).text()}) == 3
    assert output(*arguments, "--raw") == raw + "\n"
    assert output(*arguments, "--chat-template", template, "--template-args", '{"tail": "!"}') == tailed + "\n"


def test_profile_options_and_adapters_reach_the_lease(synthetic: Synthetic, model: llm.Model, tmp_path: Path) -> None:
    adapters = [gguf_files.lora(tmp_path / f"{seed}=a.gguf", seed=seed) for seed in (1, 2)]
    arguments = ("generate", synthetic("llama"), "Hello", *EXACT, "--max-tokens", 24, "--json")
    profile = ("--threads", 1, "--batch-tokens", 64, "--prefix-cache-entries", 1, "--speculative-tokens", 4)
    tuned = json.loads(output(*arguments, *profile))
    timings = tuned["timings"]
    assert tuned["output_hash"] == model.generate("Hello", max_tokens=24).output_hash()
    assert (timings["threads"], timings["batch_tokens"], timings["prefix_cache_entries"]) == (1, 64, 1)
    assert timings["speculative_proposed_tokens"] >= 0
    adapted = model.with_adapter(adapters[0], 0.5).with_adapter(adapters[1]).generate("Hello", max_tokens=24)
    given = ("--adapter", f"{adapters[0]}=0.5", "--adapter", adapters[1])
    assert json.loads(output(*arguments, *given))["output_hash"] == adapted.output_hash() != tuned["output_hash"]
    assert "speculative_tokens" in refusal(1, *arguments, "--speculative-tokens", 33)


def test_a_prompt_comes_from_stdin_without_its_last_line_break(synthetic: Synthetic, model: llm.Model) -> None:
    expected = model.generate("two\nlines: \u00e9\n", max_tokens=10).text() + "\n"
    arguments = (*EXACT, "--max-tokens", 10)
    given = "two\nlines: \u00e9\n\n".encode()
    assert output("generate", synthetic("llama"), *arguments, stdin=given) == expected
    assert output("generate", synthetic("llama"), "-", *arguments, stdin=given) == expected


def test_timings_go_to_stderr_and_only_those_that_were_measured(synthetic: Synthetic, model: llm.Model) -> None:
    done = run("generate", synthetic("llama"), "Hello", *EXACT, "--max-tokens", 5, "--timings")
    said = done.stderr.decode()
    assert done.stdout.decode() == model.generate("Hello", max_tokens=5).text() + "\n"
    assert "prefill_duration" in said
    assert "digest_after_duration" in said
    assert "tokens/s" in said
    assert "speculative" not in said  # this lease has no speculation: there is nothing to tell


def test_text_is_written_while_it_is_made(synthetic: Synthetic) -> None:
    arguments = ["generate", str(synthetic("llama")), "Hello", "--max-tokens", "3000", "--ignore-eos"]
    with subprocess.Popen([sys.executable, "-m", "aner", *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1 << 20)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert 0 < len(first) < len(rest)


# -- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E3")
def test_errors_are_one_line_on_stderr_and_exit_code_1(synthetic: Synthetic, tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!doctype html><title>Sign in</title>")
    model = synthetic("llama")
    assert "no file at" in refusal(1, "info", tmp_path / "none.gguf")
    assert "page.gguf" in refusal(1, "info", page)
    assert "context is 5" in refusal(1, "generate", model, "Hello", "--context", 5)
    assert "max_tokens is -1" in refusal(1, "generate", model, "Hello", "--max-tokens", -1)
    assert "temperature" in refusal(1, "generate", model, "Hello", "--temperature", "nan", "--json")
    assert "cuda" in refusal(1, "generate", model, "Hello", "--device", "cuda:99")
    assert "holds 16" in refusal(1, "generate", model, "Hello " * 40, "--context", 16)
    assert "byte 3 is 0xe6" in refusal(1, "generate", model, stdin=b"caf\xe6")
    assert "none.jinja" in refusal(1, "generate", model, "Hello", "--chat-template", tmp_path / "none.jinja")
    assert "--chat-template" in refusal(1, "chat", synthetic("llama-plain"))
    assert "lone surrogate" in refusal(1, "generate", model, os.fsdecode(b"caf\xe6"))


def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(synthetic: Synthetic) -> None:
    model = synthetic("llama")
    for said, arguments in (
        ("--nope", ["--nope"]),
        ("'nope'", ["nope"]),
        ("MODEL", ["info"]),
        ("stand after it", ["--json", "info", model]),
        ("--version", ["--json"]),
        ("--context", ["generate", model, "Hello", "--context", "many"]),
        ("TOKEN=NUMBER", ["generate", model, "Hello", "--logit-bias", "7"]),
        ("JSON object", ["generate", model, "Hello", "--template-args", "[]"]),
        ("--json", ["generate", model, "Hello", "--logprobs", 2]),
        ("nothing on stdin", ["generate", model]),
        ("--context: needs --load", ["info", model, "--context", 64]),
        ("--device: needs a MODEL", ["doctor", "--device", "cpu"]),
    ):
        assert said in refusal(2, *arguments)


def test_no_command_at_all_shows_the_commands() -> None:
    done = run()
    assert done.returncode == 2
    assert all(name in done.stdout.decode() for name in ("info", "generate", "chat", "doctor"))


def test_hostile_text_in_an_error_does_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in refusal(1, "info", tmp_path / "\x1b]0;owned\x07\nsecond line.gguf")


@pytest.mark.contract("L4")
def test_nothing_is_fetched_or_asked_of_the_network(synthetic: Synthetic) -> None:
    assert "not a local file" in refusal(1, "info", "https://example.org/model.gguf")
    # The extension cannot even resolve a name, and Python's own sockets stay untouched by a whole request.
    library = Path(aner_native.__file__).read_bytes()
    assert not [name for name in (b"getaddrinfo", b"gethostbyname", b"curl_easy") if name in library]
    watched = (
        "import runpy, sys\n"
        "def hook(event, _):\n"
        "    if event.startswith('socket.'): print(event, file=sys.stderr)\n"
        "sys.addaudithook(hook)\n"
        "runpy.run_module('aner', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", watched, "generate", str(synthetic("llama")), "Hello", "--max-tokens", "3"]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert done.stderr == b""


@pytest.mark.contract("E4")
def test_the_library_prints_nothing_even_when_it_fails(synthetic: Synthetic, tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("no model")
    program = (
        "import sys\nfrom aner import AnerError, llm\n"
        "with llm.load(sys.argv[1], context=512) as model:\n"
        "    model.generate('Hello', max_tokens=3)\n"
        "    for prompt, options in (('x' * 9000, {}), ('Hello', {'top_k': -1})):\n"
        "        try: model.generate(prompt, **options)\n"
        "        except AnerError: pass\n"
        "try: llm.load(sys.argv[2])\n"
        "except AnerError: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(synthetic("llama")), str(page)], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


# -- plan --------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("M3")
def test_plan_prints_what_llm_plan_gives_and_takes_each_of_its_settings(synthetic: Synthetic) -> None:
    options: dict[str, Any] = {
        "budget": "1GiB", "context": 300, "kv_cache_type": "q8_0", "flash_attention": "on", "max_sequences": 3,
        "batch_tokens": 64, "micro_batch_tokens": 32, "reproducible": True, "mapped": False,
    }  # fmt: skip
    arguments: list[object] = ["--reproducible", "--no-mapped"]
    for name, value in options.items():
        if not isinstance(value, bool):
            arguments += ["--" + name.replace("_", "-"), value]
    record = json.loads(output("plan", synthetic("llama"), "--json", *arguments))
    assert record == dict(llm.plan(synthetic("llama"), **options))
    for name in ("prefix_cache_entries", "speculative_tokens"):
        flag = "--" + name.replace("_", "-")
        record = json.loads(output("plan", synthetic("llama"), "--json", "--budget", "1GiB", flag, 2))
        assert record == dict(llm.plan(synthetic("llama"), budget="1GiB", **{name: 2})), name


@pytest.mark.contract("M3", "Z4")
def test_plan_tells_people_whether_it_fits_and_what_would(synthetic: Synthetic) -> None:
    path = synthetic("gemma3")
    text = output("plan", path, "--budget", "64GiB")
    plan = llm.plan(path, budget="64GiB")
    assert f"total        {plan['total_bytes'] / 2**20:,.1f} MiB\n" in text
    assert "attention 2.0 MiB, sliding window" in text
    assert "memory       64.0 GiB asked for: it fits\n" in text
    assert "would fit    context up to 4,096\n" in text
    small = output("plan", path, "--budget", "1MiB")
    assert "1.0 MiB asked for: it does not fit\n" in small
    assert "context up to 0\n" in small
    assert "KV types: none\n" in small
    assert "available now" in output("plan", path)
    assert "budget" in refusal(1, "plan", path, "--budget", "8 apples")
    assert "context is 5" in refusal(1, "plan", path, "--context", "5")


# -- pipes and signals -------------------------------------------------------------------------------------------------------


def endless(model: Path) -> list[str]:
    """A command that would answer for minutes."""
    arguments = ["generate", str(model), "Hello", "--context", "100000", "--max-tokens", "90000", "--ignore-eos"]
    return [sys.executable, "-m", "aner", *arguments]


def test_a_reader_that_goes_away_ends_the_command_silently(synthetic: Synthetic) -> None:
    with subprocess.Popen(endless(synthetic("llama")), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
    for arguments in (["info", str(synthetic("llama"))], ["--version"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([sys.executable, "-m", "aner", *arguments], stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
        assert (done.returncode != 0, done.stderr) == (True, b"")


@pytest.mark.contract("Z4")
def test_ctrl_c_ends_a_generation_with_130_and_without_a_traceback(synthetic: Synthetic) -> None:
    with subprocess.Popen(endless(synthetic("llama")), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert (process.wait(60), said) == (130, b"")
        assert process.stdout.read().endswith(b"\n")  # what came before it is a whole line


def test_output_that_cannot_be_written_is_an_error(synthetic: Synthetic) -> None:
    for arguments in (["--version"], ["--help"], ["info", str(synthetic("llama"))]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sys.executable, "-m", "aner", *arguments], stdout=full, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert b"No space left" in done.stderr


def test_output_is_utf8_and_unchanged_whatever_encoding_is_set(synthetic: Synthetic, model: llm.Model) -> None:
    escape = 3 + 0x1B  # this vocabulary's token for the byte
    options: tuple[object, ...] = ("--max-tokens", 3, "--logit-bias", f"{escape}=100")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert output("generate", synthetic("llama"), "Hello", *EXACT, *options, env=plain) == "\x1b\x1b\x1b\n"
    prompt = "caf\u00e9 \U0001f600"
    expected = model.generate(prompt, max_tokens=60, temperature=2.0, seed=5)
    options = ("--max-tokens", 60, "--temperature", 2.0, "--seed", 5, "--no-stream")
    assert max(map(ord, expected.text())) > 127
    assert output("generate", synthetic("llama"), prompt, *EXACT, *options, env=plain) == expected.text() + "\n"


# -- chat from a pipe --------------------------------------------------------------------------------------------------------


def test_chat_reads_a_message_from_each_line_of_a_pipe(synthetic: Synthetic, model: llm.Model) -> None:
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for text in ("Hello", "/and more"):
        messages.append({"role": "user", "content": text})
        answer = model.generate(messages=messages, max_tokens=9).text()
        messages.append({"role": "assistant", "content": answer})
    expected = "".join(message["content"] + "\n" for message in messages if message["role"] == "assistant")
    given = b"Hello\n\n//and more\n/exit\nnever read\n"
    done = run("chat", synthetic("llama"), *EXACT, "--max-tokens", 9, "--system", "Be brief.", stdin=given)
    assert (done.returncode, done.stdout.decode()) == (0, expected)


def test_chat_from_a_pipe_ends_at_the_first_error(synthetic: Synthetic) -> None:
    given = b"x" * 900 + b"\nHello\n"
    done = run("chat", synthetic("llama"), *EXACT, stdin=given)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the context is full" in done.stderr
