"""The jinja2 environment chat templates run in: what Hugging Face templates use, and nothing else.

Templates come with model files, so they are untrusted. jinja2's immutable sandbox keeps them away from
attributes; what they may use of memory and time is bounded here: loops and calls count steps, and whatever
makes a value (operators, methods, filters, literals) is measured, most of it before the value is made. The clock
is looked at between calls; `texts` keeps each of them short.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kit.models.chat.limits import (
    MAX_CHARS,
    MAX_ITEMS,
    LimitError,
    extent,
    joined,
    listed,
    measured,
    now,
    require_chars,
    spend,
)
from kit.models.chat.texts import check_method, check_replaced, check_subject

_NO_FILTERS = ("pprint", "random", "striptags", "urlize", "xmlattr")
_NO_METHODS = frozenset(("encode", "expandtabs", "striptags", "translate", "unescape"))
_LAZY = frozenset(("first", "map", "reject", "rejectattr", "select", "selectattr"))
_LISTING = frozenset(("join", "list", "sort", "unique"))
_WHOLE = (str, dict, list, tuple)
# A field of five digits, or one whose width comes from a value.
_WIDE_FIELD = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*(\d{5}|\*)|\{[^{}]*(\d{5}|\{)")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """jinja2 as Hugging Face sets it up for chat templates, with limits; one environment renders one template."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    concat = staticmethod(lambda pieces: joined(list(pieces)))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
            finalize=_shown,
        )
        for name in _NO_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited(name, function) for name, function in self.filters.items()}
        own: dict[str, Callable[..., Any]] = {"-tick": _tick, "-measured": measured, "-concat": _concat}
        self.filters |= own
        self.globals |= {"namespace": _Namespace, "raise_exception": _raise, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counted().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute: nothing private, nothing that changes a value."""
        unlimited = isinstance(obj, (str, bytes)) and attr in _NO_METHODS
        return not unlimited and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuse at once, where jinja2 waits until the value is used."""
        raise SecurityError(f"a template may not use the attribute {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``, unless the result would be too large."""
        _check_operands(operator, left, right)
        return measured(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, method or macro."""
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = tuple(listed(arg) if isinstance(arg, Iterator) else arg for arg in args)
            _check_text_call(str(getattr(method, "__name__", "")), owner, args, kwargs)
        spend()
        return measured(super().call(__context, __obj, *args, **kwargs))


class _Namespace(Namespace):
    """A namespace whose text does not show what it holds, which may hold itself."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's words for training; here its body is all there is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        """Return the body."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Counted(NodeTransformer):
    """Puts a step into every loop and a measurement around every expression that makes a value."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """A step for each time round, skipped ones included."""
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered("-tick", nodes.Const(True)), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_filtered("-tick", nodes.Const(True)), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """``~`` joins texts."""
        self.generic_visit(node)
        return _filtered("-concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """A slice is a copy."""
        self.generic_visit(node)
        return _filtered("-measured", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802
        """A literal may hold what is large."""
        self.generic_visit(node)
        return _filtered("-measured", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """A literal too, unless it is what a loop or a set assigns to."""
        self.generic_visit(node)
        return _filtered("-measured", node) if node.ctx == "load" else node


def _filtered(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _shown(context: Any, value: Any) -> Any:
    """What ``{{ value }}`` writes. That it takes the context keeps jinja2 from computing constants at compile time."""
    spend()
    return value


def _tick(value: bool) -> bool:
    spend()
    return value


def _concat(values: list[Any]) -> str:
    return joined([str(value) for value in values])


def _raise(message: object) -> None:
    raise JinjaError(f"the template refuses: {message}")


def _strftime_now(form: str) -> str:
    _check_format(str(form), ())
    return now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: letters as they are, no HTML escapes."""
    if isinstance(value, Iterator):
        value = listed(value)
    if indent is not None:
        if not isinstance(indent, int) or not 0 <= indent <= 64:
            raise LimitError(f"tojson indents by {indent!r}; 0 to 64 are allowed")
        size = extent(value)
        require_chars(size.n_chars + size.n_items * size.depth * indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at its arguments first and at its result afterwards."""

    @functools.wraps(function)  # keeps jinja2's marks for filters that want context or environment
    def run(*args: Any, **kwargs: Any) -> Any:
        spend()
        n_given = 1 if hasattr(function, "jinja_pass_arg") else 0
        given = list(args)
        if len(given) > n_given and name not in _LAZY and not isinstance(given[n_given], _WHOLE):
            if isinstance(given[n_given], Iterator) or (name in _LISTING and isinstance(given[n_given], Iterable)):
                given[n_given] = measured(listed(given[n_given]))
        elif len(given) > n_given and name in _LISTING:
            measured(given[n_given])
        _check_filter(name, given[n_given:], kwargs)
        return measured(function(*given, **kwargs))

    return run


def _check_filter(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    numbers = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, int)]
    _check_widths(numbers, MAX_ITEMS if name in ("batch", "slice") else MAX_CHARS)
    texts = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, str)]
    subject = args[0] if args else ""
    check_subject(name, subject, args[1:], kwargs)
    n_fill = max([0, *map(len, texts), *numbers])
    if name == "replace" and len(texts) >= 2:
        check_replaced(str(subject), texts[0], texts[1])
    elif name in ("indent", "wordwrap"):
        require_chars((len(str(subject)) + 1) * (1 + n_fill) if n_fill > 64 else 0)
    elif name == "join" and isinstance(subject, (list, tuple, dict, str)):
        require_chars(len(subject) * n_fill)
    elif name == "format":
        _check_format(str(subject), (*args[1:], *kwargs.values()))
    elif name == "round":
        _check_widths(numbers, 100)


def _check_text_call(name: str, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = (*args, *kwargs.values())
    check_method(name, owner, args, kwargs)
    _check_widths([value for value in given if isinstance(value, int)], MAX_CHARS)
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        check_replaced(owner, args[0], args[1])
    elif name == "join" and args and hasattr(args[0], "__len__"):
        require_chars(len(args[0]) * len(owner) + extent(args[0]).n_chars)
    elif name in ("format", "format_map"):
        _check_format(owner, given)


def _check_widths(numbers: Iterable[int], most: int) -> None:
    for number in numbers:
        if number > most:
            raise LimitError(f"it asks for {number} characters or values; {most} are the most")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for many, n in ((left, right), (right, left)):
            if hasattr(many, "__len__") and isinstance(n, int):
                most = MAX_CHARS if isinstance(many, (str, bytes)) else MAX_ITEMS
                _check_widths([len(many) * max(n, 0)], most)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        require_chars(max(left.bit_length(), 1) * max(right, 0) * 100)
    elif operator == "%" and isinstance(left, (str, bytes)):
        _check_format(left if isinstance(left, str) else left.decode("latin-1"), right)
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        require_chars(len(left) + len(right))


def _check_format(form: str, values: Any) -> None:
    """Raise LimitError if ``form`` filled with ``values``, each of which many fields may name, might get too long."""
    plain = form.replace("{{", "").replace("}}", "")
    if _WIDE_FIELD.search(plain):
        raise LimitError(f"the format {form[:40]!r} has a field of five digits or of variable width")
    n_fields = plain.count("%") + plain.count("{")
    size = extent(values)
    widths = sum(int(number) for number in re.findall(r"\d{1,4}", plain)) if n_fields else 0
    require_chars(len(form) + widths + n_fields * (size.n_chars + size.n_items))
