"""The sandbox chat templates run in: the reference implementation's Jinja settings, with time and memory bounded.

A template comes with a model file and is trusted as little. Jinja's sandbox keeps it from Python's internals; here every
construct that makes a value, repeats work or writes text also passes a gate that charges the render's meter:

* a loop iteration, comparison, lookup, call, filter, test or piece of output is a step: it costs a little and looks at the
  clock, so that no more than the work between two steps passes after the deadline;
* a new value (a literal, a slice, a concatenation, the result of a call, filter or operator) is measured and refused over
  the limit, so that a later conversion, comparison or hash of it, which cannot be interrupted, is bounded too;
* an operation whose result can be much larger than its operands is sized before it runs, or is not offered: methods and
  filters that ``_sandbox_values`` does not name do not exist here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import pass_context
from markupsafe import Markup

from aner.llm import _sandbox_values as values
from aner.llm._meter import MAX_NESTING, LimitError, Meter


class _GenerationTags(Extension):
    """``{% generation %}`` marks assistant text for training; a prompt needs only what stands inside."""

    tags = {"generation"}  # noqa: RUF012  (an instance variable to its base class)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _GatedCode(CodeGenerator):
    """Jinja's compiler, with the gates written around the code it generates."""

    @contextmanager
    def _gate(self, opening: str) -> Iterator[None]:
        self.write(opening)
        yield
        self.write(")")

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        if frame.loop_frame:
            self.writeline("environment.step()")

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        if all(isinstance(child, nodes.TemplateData) for child in node.nodes):  # other output steps as it is written
            self.writeline("environment.step()")
        super().visit_Output(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        with self._gate("environment.made("):
            super().visit_List(node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        with self._gate("environment.made("):
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        with self._gate("environment.made({"):
            for pair in node.items:
                with self._gate("environment.made("):
                    self.visit(pair.key, frame)
                self.write(": ")
                self.visit(pair.value, frame)
                self.write(", ")
            self.write("}")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        with self._gate("environment.concat(map(environment.written, ("):
            for child in node.nodes:
                self.visit(child, frame)
                self.write(", ")
            self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        with self._gate("(environment.step() and "):
            super().visit_Compare(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        with self._gate("environment.made("):  # a slice is plain Python: it does not go through ``getitem``
            super().visit_Getitem(node, frame)


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        environment: Any = self._env
        values.size_width(format_spec)
        return environment.made(super().format_field(value, format_spec))


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


@pass_context
def _finalize(context: Context, value: Any) -> str:
    environment: Any = context.environment
    text: str = environment.written(value)
    return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates and runs them, each render under the meter that ``metered`` sets for its thread."""

    code_generator_class = _GatedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Without the optimizer, and with a finalizer that wants the context, nothing is evaluated while compiling.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTags, "jinja2.ext.loopcontrols"],
            optimized=False,
            finalize=_finalize,
        )
        self._thread = threading.local()
        del self.globals["lipsum"]
        self.globals.update(values.GLOBALS)
        offered: dict[str, Any] = {name: self.filters[name] for name in values.PLAIN_FILTERS} | values.SIZED_FILTERS
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._gated(function) for name, function in offered.items()}
        self.tests = {name: self._gated(test) for name, test in tests.items()}

    def _gated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the attribute that says which context the function wants
        def gated(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return self.made(function(*args, **kwargs))

        return gated

    @contextmanager
    def metered(self, meter: Meter) -> Iterator[None]:
        self._thread.meter = meter
        try:
            yield
        finally:
            del self._thread.meter

    @property
    def meter(self) -> Meter:
        meter: Meter = self._thread.meter
        return meter

    def step(self) -> bool:
        self.meter.charge()
        return True

    def made(self, value: Any) -> Any:
        return self.meter.made(value)

    def written(self, value: Any) -> str:
        """``value`` as the text that output and concatenation take it for."""
        if isinstance(value, str):
            self.meter.charge()
            return value
        self.meter.measure(value)
        text: str = self.made(str(value))
        return text

    def concat(self, pieces: Iterable[str]) -> str:
        meter = self.meter
        kept, size = [], 0
        for piece in pieces:
            size += len(piece)
            meter.require(size)
            kept.append(piece)
        text: str = meter.made("".join(kept))
        return text

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        offered = next((names for kind, names in values.METHODS.items() if isinstance(obj, kind)), None)
        return (offered is None or attr in offered) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, takes_mapping = value.__self__, value.__name__ == "format_map"
        formatter = _EscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)

        def formatted(*args: Any, **kwargs: Any) -> str:
            whole = formatter.vformat(text, (), args[0]) if takes_mapping else formatter.vformat(text, args, kwargs)
            return str(whole) if type(text) is str else Markup(whole)

        return formatted

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = self.meter
        meter.charge()
        given = [*args, *(value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars"))]
        meter.require(sum(meter.measure(value)[0] for value in given))
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            args = values.sized_arguments(meter, text, obj.__name__, args)
        if meter.calls >= MAX_NESTING:
            raise LimitError(f"it nests calls more than {MAX_NESTING} deep")
        meter.calls += 1
        try:
            return meter.made(super().call(context, obj, *args, **kwargs))
        finally:
            meter.calls -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            values.size_percent(self.meter, left, right)
        elif operator == "*":
            values.size_product(self.meter, left, right)
        elif operator == "**":
            values.size_power(left, right)
        return self.made(super().call_binop(context, operator, left, right))
