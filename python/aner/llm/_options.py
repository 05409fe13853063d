"""Generation options (Z7): names, defaults, types. Ranges are checked by the native core, once for all languages."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from aner.errors import InvalidRequestError

#: Every option of a request with its default. None: off, or drawn (seed).
DEFAULTS: dict[str, Any] = {
    "max_tokens": 256,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "penalty_window": 64,
    "logit_bias": None,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "min_tokens": 0,
    "ignore_eos": False,
    "logprobs": None,
    "timeout": None,
}

_INTEGERS = ("max_tokens", "top_k", "penalty_window", "min_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")
_INT32 = range(-(2**31), 2**31)
_MAX_TIMEOUT = 10 * 365 * 86400.0


def native_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check names and types of ``given`` and fill in the defaults, in the form that the native core takes.

    Raises InvalidRequestError for an unknown name, a wrong type, or a number that the core could not even represent.
    """
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise InvalidRequestError(f"unknown option {', '.join(unknown)}: the options are {', '.join(DEFAULTS)}")
    options = {**DEFAULTS, **given}
    native: dict[str, Any] = {name: _integer(name, options[name]) for name in _INTEGERS}
    native |= {name: _number(name, options[name]) for name in _NUMBERS}
    native["logit_bias"] = _logit_bias(options["logit_bias"])
    native["seed"] = _seed(options["seed"])
    native["stop"] = _stop(options["stop"])
    native["stop_token_ids"] = token_ids("stop_token_ids", options["stop_token_ids"])
    native["ignore_eos"] = _boolean("ignore_eos", options["ignore_eos"])
    native["logprobs"] = _logprobs(options["logprobs"])
    native["timeout_ns"] = _timeout(options["timeout"])
    return native


def _refuse(name: str, wanted: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {wanted}, it is {value!r:.100}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(name, "an integer", value)
    number = int(value.__index__())
    if number not in _INT32:
        raise _refuse(name, "an integer of 32 bits", value)
    return number


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or (not isinstance(value, (int, float)) and not hasattr(value, "__float__")):
        raise _refuse(name, "a number", value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _refuse(name, "a number", value) from None
    if not math.isfinite(number):
        raise _refuse(name, "a finite number", value)
    return number


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, "True or False", value)
    return value


def _seed(value: object) -> int:
    if value is None:
        return secrets.randbits(63)
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value.__index__()) < 2**64:
        raise _refuse("seed", "None or an integer within 0..2**64-1", value)
    return int(value.__index__())


def utf8(name: str, value: object) -> bytes:
    """``value`` as UTF-8; InvalidRequestError for anything but text, and for lone surrogates."""
    if not isinstance(value, str):
        raise _refuse(name, "a str", value)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is not valid Unicode: a lone surrogate at index {error.start}") from None


def _stop(value: object) -> list[bytes]:
    if value is None:
        return []
    if isinstance(value, str):
        return [utf8("stop", value)]
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise _refuse("stop", "a str or a list of str", value)
    return [utf8(f"stop[{i}]", one) for i, one in enumerate(value)]


def token_ids(name: str, value: object) -> list[int]:
    """``value`` as a list of 32-bit integers; whether the vocabulary has them is the core's question."""
    if value is None:
        return []
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise _refuse(name, "a list of token ids", value)
    return [_integer(f"{name}[{i}]", one) for i, one in enumerate(value)]


def _logit_bias(value: object) -> list[tuple[int, float]]:
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise _refuse("logit_bias", "a mapping of token id to number", value)
    pairs = []
    for token, bias in value.items():
        number = bias if bias == float("-inf") else _number(f"logit_bias[{token!r}]", bias)  # -inf bans the token
        pairs.append((_integer("a token id of logit_bias", token), number))
    return pairs


def _logprobs(value: object) -> int:
    if value is None or value is False:
        return -1
    if value is True:
        return 0
    number = _integer("logprobs", value)
    if number < 0:
        raise _refuse("logprobs", "None, a bool, or the number of alternatives, 0 or more", value)
    return number


def _timeout(value: object) -> int:
    if value is None:
        return 0
    seconds = _number("timeout", value)
    if not 0 < seconds <= _MAX_TIMEOUT:
        raise _refuse("timeout", "None or a number of seconds above 0", value)
    return max(1, int(seconds * 1e9))
