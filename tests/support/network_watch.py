"""Loads and generates under an audit hook. Imports nothing of the tests: what is loaded in the process was loaded by aner."""

from __future__ import annotations

import os
import sys

WATCHED = (
    "socket.", "http.", "urllib.", "ftplib.", "smtplib.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "ctypes.", "webbrowser.",
)  # fmt: skip
SPEAKERS = {"socket", "_socket", "ssl", "http.client", "urllib.request", "requests", "httpx", "huggingface_hub"}


def watched_loads(paths: list[str], addresses: list[str]) -> dict[str, list[str]]:
    """Audit events, sockets among the descriptors at any moment of it, and modules that could have opened one."""
    seen: list[str] = []
    sockets: list[str] = []
    sys.addaudithook(lambda event, arguments: seen.append(event) if event.startswith(WATCHED) else None)
    from aner import llm

    def look(*report: object) -> None:
        for fd in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue  # the descriptor of the listing itself
            if link.startswith("socket:"):
                sockets.append(link)

    for path in paths:
        with llm.load(path, context=64, progress=look) as model:
            for _ in model.stream("Hello", max_tokens=4, ignore_eos=True):
                look()
        look()
    for address in addresses:
        try:
            llm.load(address)
        except FileNotFoundError:
            look()
    return {"events": sorted(set(seen)), "sockets": sockets, "modules": sorted(SPEAKERS & set(sys.modules))}
