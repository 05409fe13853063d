"""What a chat template is offered to work with: the methods, filters and globals, and the size of what they would make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import filters
from jinja2.utils import Namespace, pass_environment

from aner.llm._meter import MAX_INT_BITS, LimitError, Meter


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: dict[type, frozenset[str]] = {
    str: _names(
        "capitalize casefold count endswith find format format_map index isalnum isalpha isascii isdecimal isdigit "
        "isidentifier islower isnumeric isprintable isspace istitle isupper join lower lstrip partition removeprefix "
        "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title "
        "upper"
    ),
    int: frozenset(),
    float: frozenset({"is_integer"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
}
PLAIN_FILTERS = _names(
    "abs attr capitalize count d default dictsort e escape filesizeformat first float forceescape groupby int items last "
    "length list lower map max min reject rejectattr reverse safe select selectattr sort string title truncate upper "
    "urlencode wordcount"
)

MAX_SEARCHED = 256  # characters in the argument of a search that costs len(text) * len(argument)
_SEARCHES = _names("lstrip rfind rindex rpartition rsplit rstrip strip")
MAX_HASHED = 10_000  # values hashed by one call: ones that collide cost the square of it
MAX_INDENT = 16
MAX_PRECISION = 100
_WIDE = re.compile(r"\d{5}")  # a width or precision in a format string
_PERCENT = re.compile(r"%(?:\([^()%]{0,99}\))?([^a-zA-Z%]*)")


class Refusal(jinja2.TemplateError):
    """The template called ``raise_exception``."""


def raise_exception(message: Any = "") -> None:
    raise Refusal(str(message))


def strftime_now(format: str) -> str:
    _at_most(len(format), MAX_SEARCHED, "characters in a date format")
    return datetime.now().strftime(format)


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    if args and not isinstance(args[0], Mapping):
        _at_most(len(args[0]), MAX_HASHED, "pairs in a dict")
    return dict(*args, **kwargs)


class PublicNamespace(Namespace):
    """Jinja's namespace without private names; it never writes out its attributes, which are not measured."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that ``namespace(self=...)`` works
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            PublicNamespace._require_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        PublicNamespace._require_public(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"

    @staticmethod
    def _require_public(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace attribute may not be called {name!r}")


GLOBALS: dict[str, Any] = {
    "dict": make_dict,
    "namespace": PublicNamespace,
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
}


def _at_most(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise LimitError(f"it asks for more than {limit} {what}")


def size_width(format_spec: str) -> None:
    if _WIDE.search(format_spec):
        raise LimitError("it asks for a width of five digits")


def size_percent(meter: Meter, text: str, values: Any) -> None:
    specs = _PERCENT.findall(text)
    for spec in specs:
        size_width(spec)
        if "*" in spec:
            raise LimitError("it asks for a width that is computed")
    meter.require(len(text) + len(specs) * meter.measure(values)[0])


def size_replacement(meter: Meter, text: str, old: str, new: str) -> None:
    meter.require(len(text) + text.count(old) * len(new))


def size_product(meter: Meter, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _at_most(left.bit_length() + right.bit_length(), MAX_INT_BITS, "bits in a number")
    elif isinstance(left, int):
        meter.require(left * meter.measure(right)[0])
    elif isinstance(right, int):
        meter.require(right * meter.measure(left)[0])


def size_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _at_most(base.bit_length() * exponent, MAX_INT_BITS, "bits in a number")


def sized_arguments(meter: Meter, text: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call of ``text.method``, once its cost is known to be bounded."""
    meter.charge(len(text))
    if method == "join" and args:
        return (meter.listed(args[0], len(text)), *args[1:])
    if method == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        size_replacement(meter, text, args[0], args[1])
    if method in _SEARCHES and args and isinstance(args[0], str):
        _at_most(len(args[0]), MAX_SEARCHED, f"characters to {method}")
    return args


def _attributes(environment: Any, values: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
    return values if attribute is None else map(filters.make_attrgetter(environment, attribute), values)


@pass_environment
def _format(environment: Any, value: Any, *args: Any, **kwargs: Any) -> str:
    size_percent(environment.meter, str(value), kwargs or args)
    return filters.do_format(value, *args, **kwargs)


@pass_environment
def _indent(environment: Any, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(s, str):
        environment.meter.require(len(s) + (len(s.splitlines()) + 1) * (width if isinstance(width, int) else len(width)))
    return filters.do_indent(s, width, first, blank)


@pass_environment
def _join(environment: Any, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    separator = str(d)
    items = environment.meter.listed(_attributes(environment, value, attribute), len(separator))
    return separator.join(map(str, items))


@pass_environment
def _replace(environment: Any, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    size_replacement(environment.meter, text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    _at_most(abs(precision), MAX_PRECISION, "decimal places")
    return filters.do_round(value, precision, method)


@pass_environment
def _sum(environment: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    total = start
    for item in _attributes(environment, iterable, attribute):
        total = environment.made(total + item)
    return total


def _tojson(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    for given in (indent, *(separators or ())):
        _at_most(given if isinstance(given, int) else len(given or ""), MAX_INDENT, "characters of JSON layout")
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _trim(value: Any, chars: str | None = None) -> str:
    _at_most(len(chars or ""), MAX_SEARCHED, "characters to strip")
    return filters.do_trim(value, chars)


@pass_environment
def _unique(
    environment: Any, value: Iterable[Any], case_sensitive: bool = False, attribute: str | int | None = None
) -> Iterable[Any]:
    items = environment.meter.listed(value)
    _at_most(len(items), MAX_HASHED, "values to tell apart")
    return filters.sync_do_unique(environment, items, case_sensitive, attribute)


SIZED_FILTERS: dict[str, Any] = {
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
    "unique": _unique,
}
