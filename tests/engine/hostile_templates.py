"""Chat templates that try to hang the process, exhaust its memory or leave the sandbox."""

from __future__ import annotations

_START = "{% set ns = namespace(s='x', l=[], t=(1,), d={}, n=3) %}"


def _loop(count: int, body: str) -> str:
    return f"{{% for i in range({count}) %}}{body}{{% endfor %}}"


_LONG = _START + _loop(19, "{% set ns.s = ns.s ~ ns.s %}")  # 512 thousand characters in ns.s


def _doubling(step: str) -> str:
    return _START + _loop(64, step)


#: Each must be stopped with a TemplateError.
ENDLESS = {
    "loops": _loop(100_000, _loop(100_000, "")),
    "loops over a kept range": "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "loops that write": _loop(100_000, _loop(100_000, "text")),
    "loops in a captured block": "{% set q %}" + _loop(100_000, _loop(100_000, "text")) + "{% endset %}",
    "loop over filtered loops": "{% for x in range(100000) if range(100000)|select('eq', 1)|list %}{% endfor %}",
    "string times": "{{ 'a' * 10**9 }}",
    "times string": "{{ 10**9 * 'a' }}",
    "list times": "{{ ([1] * 10**9)|length }}",
    "power": "{{ 7 ** (10**9) }}",
    "negative power": "{{ (-7) ** (10**9) }}",
    "squares": _doubling("{% set ns.n = ns.n * ns.n %}"),
    "doubling by ~": _doubling("{% set ns.s = ns.s ~ ns.s %}"),
    "doubling by +": _doubling("{% set ns.s = ns.s + ns.s %}"),
    "doubling a list": _doubling("{% set ns.l = ns.l + ns.l + [1] %}"),
    "doubling by capture": _doubling("{% set q %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = q %}"),
    "doubling by macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + _doubling("{% set ns.s = m(ns.s) %}"),
    "doubling by format": _doubling("{% set ns.s = '{}{}'.format(ns.s, ns.s) %}"),
    "doubling by safe format": _doubling("{% set ns.s = ('{}{}'|safe).format(ns.s, ns.s) %}"),
    "doubling by format_map": _doubling("{% set ns.s = '{a}{a}'.format_map({'a': ns.s}) %}"),
    "doubling by %": _doubling("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
    "doubling by format filter": _doubling("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
    "doubling by join filter": _doubling("{% set ns.s = [ns.s, ns.s]|join %}"),
    "doubling by join": _doubling("{% set ns.s = ''.join([ns.s, ns.s]) %}"),
    "shared lists": _doubling("{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
    "shared tuples as a key": _doubling("{% set ns.t = (ns.t, ns.t) %}") + "{{ {ns.t: 1} }}",
    "shared dicts as JSON": _doubling("{% set ns.d = {'a': ns.d, 'b': ns.d} %}") + "{{ ns.d|tojson }}",
    "shared dict views": _doubling("{% set ns.d = {'a': ns.d.items(), 'b': ns.d} %}") + "{{ ns.d }}",
    "shared by dict()": _doubling("{% set ns.d = dict(a=ns.d, b=ns.d) %}") + "{{ ns.d }}",
    "shared by varargs": "{% macro m() %}{% set ns.t = varargs %}{% endmacro %}"
    + _doubling("{{ m(ns.t, ns.t) }}")
    + "{{ {ns.t: 1} }}",
    "shared by kwargs": "{% macro m(n) %}{% set n.t = kwargs %}{% endmacro %}"
    + "{% set a = namespace(t=1) %}{% set b = namespace(t=1) %}"
    + _loop(64, "{{ m(a, _x=a.t, _y=a.t) }}{{ m(b, _x=b.t, _y=b.t) }}")
    + "{{ a.t == b.t }}",
    "shared lists compared": "{% set ns = namespace(a=1, b=1) %}"
    + _loop(64, "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}")
    + "{{ ns.a == ns.b }}",
    "deep tuple": _START + _loop(100_000, "{% set ns.t = (ns.t,) %}") + "{{ {ns.t: 1} }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "tree recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% for x in [[[1]]] recursive %}{{ loop([[x]]) }}{% endfor %}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "computed format width": "{{ '{:{}}'.format(1, 10**9) }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "computed percent width": "{{ '%*d' % (10**9, 1) }}",
    "filter width": "{{ '%1000000000d'|format(1) }}",
    "precision": "{{ '%.1000000000f' % 1.5 }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "translate": _LONG + "{{ ns.s.translate({120: ns.s}) }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "indent": "{{ 'a\\nb'|indent(10**9) }}",
    "indent by text": _LONG + "{{ ('a\\n' * 4000)|indent(ns.s) }}",
    "JSON indent": "{{ [1]|tojson(indent=10**9) }}",
    "JSON separators": _LONG + "{{ ([1] * 1000)|tojson(separators=(ns.s, ns.s)) }}",
    "replace": _LONG + "{{ ns.s[:4000].replace('x', ns.s) }}",
    "replace filter": _LONG + "{{ ns.s[:4000]|replace('', ns.s) }}",
    "join many": _LONG + "{{ ns.s.join(range(4000)|map('string')) }}",
    "join filter many": _LONG + "{{ range(4000)|join(ns.s) }}",
    "join attribute": _LONG + "{{ ([ns] * 4000)|join(attribute='s') }}",
    "search from the right": _LONG + "{{ ns.s.rfind('y' + ns.s[:250000]) }}",
    "strip": _LONG + "{{ ns.s.strip('y' * 250000 + 'x') }}",
    "trim": _LONG + "{{ ns.s|trim('y' * 250000 + 'x') }}",
    "sum of lists": "{{ (range(10000)|map('string')|map('list')|list)|sum(start=[]) }}",
    "round": "{{ 1|round(-10**9) }}",
    "colliding keys": _START + _loop(9000, "{% set ns.l = ns.l + [(i * 2305843009213693951, 1)] %}") + "{{ dict(ns.l) }}",
    "large number": _LONG + "{{ ('f' * 500000)|int(0, 16) }}",
    "large unique": "{{ range(100000)|unique|list|length }}",
    "kept slices": _LONG + _loop(100_000, "{% set ns.l = ns.l + [ns.s[i:]] %}"),
    "dropped slices": _LONG + _loop(100_000, "{% set q = ns.s[i:] %}"),
    "dropped copies": _LONG + _loop(100_000, "{% set q = ns.s.upper() %}"),
    "splits": _LONG + _loop(1000, "{% set q = ns.s.split('x') %}"),
    "long date": "{{ strftime_now('%c' * 100000) }}",
    "straight comparisons": _LONG + "{% set l = [0] * 30000 %}" + "{% if l[1:] == l %}{% endif %}" * 3000,
    "straight output": _LONG + "{{ ns.s }}" * 5000,
    "refusal in surrogates": "{{ raise_exception('\\ud800') }}",
    "surrogate": "{{ '\\ud800' }}",
}

#: Each must be refused by the sandbox, or come out empty.
ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "attribute filter": "{{ ''|attr('__class__') }}",
    "format field": "{{ '{0.__class__}'.format('') }}",
    "namespace attribute": "{% set ns = namespace(__class__=1) %}",
    "namespace assignment": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "change of the messages": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends 'base' %}",
}

#: Each must not compile.
UNCOMPILABLE = {
    "syntax": "line 1\n{% if %}",
    "unclosed": "{% for x in y %}",
    "unknown filter": "{{ x|urlize }}",
    "parentheses": "{{" + "(" * 50_000 + "1" + ")" * 50_000 + "}}",
    "negations": "{{" + "-" * 100_000 + "1}}",
    "nested blocks": "{% if a %}" * 5000 + "{% endif %}" * 5000,
    "nested loops": "{% for a in b %}" * 3000 + "{% endfor %}" * 3000,
    "sum": "{{" + "+".join("a" * 60_000) + "}}",
    "branches": "{% if a %}" + "{% elif b %}" * 10_000 + "{% endif %}",
    "digits": "{{" + "9" * 100_000 + "}}",
    "length": "x" * 1_000_000,
}
