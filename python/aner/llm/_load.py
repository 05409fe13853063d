"""``llm.load``: from a path to a lease."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import aner_native

from aner._logging import flush_engine_log
from aner.errors import ConfigurationError
from aner.llm import _probe
from aner.llm._model import Model
from aner.llm._paths import local_path

Progress = Callable[[str, float], object]


def load(
    path: str | os.PathLike[str],
    context: int = 4096,
    device: str = "auto",
    kv_cache_type: str = "f16",
    flash_attention: str = "auto",
    *,
    reproducible: bool = False,
    mapped: bool = True,
    expected_sha256: str | None = None,
    chat_template: str | None = None,
    template_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a local GGUF file and return a lease of its resident weights.

    path: the file, or the first split of a split model. Never downloaded, never anything but a local file.
    context: positions of one sequence, at least 16.
    device: auto, cpu, metal (mps), cuda, cuda:N, vulkan, vulkan:N. Only ``auto`` may choose the CPU by itself.
    kv_cache_type: f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl.
    flash_attention: auto, on, off; docs/flash_attention.md says what auto does and why.
    reproducible: reference kernels on the CPU; tokens then depend on the request alone (slower).
    mapped: map the weights; False reads them into private memory, safe from changes to the file.
    expected_sha256: refuse any other content. The content is digested before and after the load in any case.
    chat_template, template_args: a template instead of the model's own, and variables for it.
    progress: called with ``(phase, fraction)``, up to 1.0 for each of header, digest, probe, engine, verify, context.

    Raises ModelNotFoundError, ModelLoadError, FingerprintMismatchError, DeviceUnavailableError, ConfigurationError,
    OutOfMemoryError, TemplateError.
    """
    native_path = local_path(path)
    settings = checked_settings(
        context, reproducible, mapped, device=device, kv_cache_type=kv_cache_type, flash_attention=flash_attention
    )
    if chat_template is not None and not isinstance(chat_template, str):
        raise ConfigurationError(f"chat_template must be a str, it is {chat_template!r:.100}")
    if template_args is not None and not (
        isinstance(template_args, Mapping) and all(isinstance(k, str) for k in template_args)
    ):
        raise ConfigurationError(f"template_args must be a mapping of str to values, it is {template_args!r:.100}")
    check_progress(progress)
    try:
        task = aner_native.LoadTask(
            native_path,
            expected_sha256=sha256_digits(expected_sha256),
            **settings,
        )
        facts = task.admit(progress)
        probe_ns = -1
        if not facts["covered"]:
            if progress is not None:
                progress("probe", 0.0)
            before = time.monotonic_ns()
            _probe.try_in_child(os.fsdecode(native_path), facts["fingerprint"], facts["architecture"])
            probe_ns = time.monotonic_ns() - before
        lease = task.load(probe_ns, progress)
    finally:
        flush_engine_log()
    return Model(lease, chat_template=chat_template, template_args=template_args)


def checked_settings(context: object, reproducible: object, mapped: object, **texts: object) -> dict[str, Any]:
    """The settings of a load as the native core takes them, whose business the ranges and names are."""
    for name, flag in (("reproducible", reproducible), ("mapped", mapped)):
        if not isinstance(flag, bool):
            raise ConfigurationError(f"{name} must be True or False, it is {flag!r:.100}")
    if isinstance(context, bool) or not isinstance(context, int) or not -(2**31) <= context < 2**31:
        raise ConfigurationError(f"context must be an integer within 16..{2**24}, it is {context!r:.100}")
    settings: dict[str, Any] = {"context": context, "reproducible": reproducible, "mapped": mapped}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"{name} must be a str, it is {value!r:.100}")
        settings[name] = value.encode("utf-8", "replace")
    return settings


def check_progress(progress: object) -> None:
    if progress is not None and not callable(progress):
        raise ConfigurationError(f"progress must be callable, it is {progress!r:.100}")


def sha256_digits(expected: str | None) -> bytes:
    """What the core takes, for which no bytes mean any content; an empty text is not that."""
    if expected is not None and not (isinstance(expected, str) and expected):
        raise ConfigurationError(f"expected_sha256 must be 64 hexadecimal digits, it is {expected!r:.100}")
    return (expected or "").encode("utf-8", "replace")
