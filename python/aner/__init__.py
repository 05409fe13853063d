"""Runs local GGUF language models: tuned immutable profiles over one set of resident weights, exact streaming, real figures.

from aner import llm

with llm.load("model.gguf") as model:
    print(model.generate("Hello!").text())
"""

from __future__ import annotations

from aner import _cpu_baseline

_cpu_baseline.check_this_cpu()

import atexit  # noqa: E402  (the check above comes before the extension)
import logging  # noqa: E402

import aner_native  # noqa: E402

from aner import errors  # noqa: E402
from aner.errors import *  # noqa: E402, F403

__all__ = ["__version__", "build_info", *errors.__all__]

__version__: str = aner_native.build_info()["version"]

logging.getLogger("aner").addHandler(logging.NullHandler())
aner_native.set_exceptions(errors.BY_NATIVE_CODE)
# Threads that are still inside the engine when the interpreter exits are stopped and waited for: the engine's own statics go away next.
atexit.register(aner_native.close_engine_gate, 10_000)


def build_info() -> dict[str, object]:
    """How this installation was built: version, engine pin and origin, compiler, flags, compiled backends."""
    return dict(aner_native.build_info())
