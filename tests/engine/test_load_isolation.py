"""What a load leaves behind: no memory, no thread, no descriptor; and what it never does: speak to a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aner_native
import pytest

from aner import llm
from tests.support.call_in_child import call_in_child
from tests.support.network_watch import watched_loads

Synthetic = Callable[[str], Path]


# -- Z2: memory ----------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load_and_close(path: str, n: int, options: dict[str, Any]) -> dict[str, Any]:
    """Load, generate and close ``n`` times: resident bytes after each, and what else the process holds at the ends."""
    resident, threads, descriptors = [], [], []
    for _ in range(n):
        with llm.load(path, context=512, **options) as model:
            model.generate([1, 2, 3], max_tokens=2, ignore_eos=True)
        resident.append(resident_bytes())
        threads.append(len(os.listdir("/proc/self/task")))
        descriptors.append(len(os.listdir("/proc/self/fd")))
    return {
        "resident": resident,
        "threads": threads,
        "descriptors": descriptors,
        "mapped": path in Path("/proc/self/maps").read_text(),
    }


@pytest.mark.contract("Z2")
@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", {}), ("llama-q4", {"mapped": False}), ("lfm2", {"reproducible": True})],
)
def test_memory_threads_and_descriptors_return_after_fifty_loads(
    synthetic: Synthetic, name: str, options: dict[str, Any]
) -> None:
    held = call_in_child(load_and_close, synthetic(name), 50, options).checked()
    after_five, after_fifty = held["resident"][4], held["resident"][-1]
    assert after_fifty - after_five <= max(0.02 * after_five, 8 << 20)
    assert held["threads"][-1] == held["threads"][4]
    assert held["descriptors"][-1] == held["descriptors"][4]
    assert held["mapped"] is False


@pytest.mark.contract("Z2")
@pytest.mark.real_model
def test_the_memory_of_a_real_model_returns(demo_model_path: Path) -> None:
    held = call_in_child(load_and_close, demo_model_path, 9, {"mapped": False}).checked()
    # a leak grows with every load; one arena of the allocator more or less does not
    assert min(held["resident"][-3:]) - held["resident"][4] <= max(0.02 * held["resident"][4], 8 << 20)


# -- L4: no network ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L4")
def test_the_extension_cannot_open_a_socket() -> None:
    # Its own code and the engine's are linked into this one file; what it cannot import, it cannot call.
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", aner_native.__file__], capture_output=True, text=True, check=True
    )
    imported = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}
    assert "pread" in imported or "pread64" in imported  # the list is real
    assert not imported & {
        "socket", "connect", "bind", "listen", "accept", "accept4", "send", "sendto", "sendmsg", "recv", "recvfrom",
        "getaddrinfo", "gethostbyname", "gethostbyname_r", "res_query", "curl_easy_perform", "system", "popen",
    }  # fmt: skip


@pytest.mark.contract("L4")
def test_loading_and_generating_opens_no_socket_and_imports_no_module_that_could(synthetic: Synthetic) -> None:
    # A machine without a network would prove more, but taking the network away needs privileges that a test run may lack.
    paths = [str(synthetic(name)) for name in ("llama", "gemma3", "mamba", "lfm2")]
    addresses = ["https://example.org/m.gguf", "http://127.0.0.1:9/m.gguf", "org/model", "//host/share/m.gguf"]
    found = call_in_child(watched_loads, paths, addresses).checked()
    assert found == {"events": [], "sockets": [], "modules": []}
