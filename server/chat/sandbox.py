"""The environment chat templates run in: transformers' one, with the origin of text and a budget.

transformers renders chat templates in jinja2's immutable sandbox with `trim_blocks`, `lstrip_blocks`, loop controls, a
plain `tojson`, `strftime_now`, `raise_exception` and `generation` blocks, and templates are written for that
(transformers/utils/chat_template_utils.py). An undefined name may be looked into, as in llama-server (common/jinja).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from jinja2 import ChainableUndefined, TemplateSyntaxError, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace, pass_context
from jinja2.visitor import NodeTransformer

from bloomery.server.chat import budget
from bloomery.server.chat.comparison import TESTS, check_key, checked_dict, compared, pay_for_search
from bloomery.server.chat.filters import FILTERS, concatenated, text_of, turns
from bloomery.server.chat.formatting import SourcedFormatter, percent
from bloomery.server.chat.sourced import as_sourced, is_clients, joined, opaque, plain

# Filter names that no template can spell: the places where the compiled code must come back to this module.
_TURNS = "turns of a loop"
_CONCATENATED = "parts of a text"
_COMPARED = "sides of a comparison"
_SURVEYED = "side of a chain of comparisons"
_KEY = "key of an object"
_MADE = "items of a list"

# Methods of str that `Sourced` follows, and those that make no text.
_TEXT_METHODS = frozenset(
    (
        *("capitalize", "format", "format_map", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
        *("replace", "rpartition", "rsplit", "rstrip", "split", "splitlines", "strip", "title", "upper"),
    )
)
_TEXT_QUESTIONS = frozenset(
    (
        *(
            "count",
            "endswith",
            "find",
            "index",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
        ),
        *("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "rfind", "rindex", "startswith"),
    )
)
_OTHER_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "index"))),
)
_OPEN_TYPES = (LoopContext, Macro, Namespace, Cycler, Joiner, Undefined)

_LARGEST_NUMBER_BITS = 4096
# A longer form of strftime is none.
_LONGEST_FORM = 256


class TemplateRefusalError(Exception):
    """A template that called `raise_exception`; the message is its own."""


_Called = TypeVar("_Called", nodes.Call, nodes.Filter, nodes.Test)


def _filtered(node: nodes.Expr, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Rewrite(NodeTransformer):
    """Leads loops, comparisons, lists and `~` through this package's filters."""

    # The methods are named after jinja2's nodes.

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _TURNS, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, _CONCATENATED, [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if len(node.ops) == 1:
            operand = node.ops[0]
            args: list[nodes.Expr] = [nodes.Const(operand.op, lineno=node.lineno), operand.expr]
            return nodes.Filter(node.expr, _COMPARED, args, [], None, None, lineno=node.lineno)
        for operand in node.ops:
            if operand.op in {"in", "notin"}:
                raise TemplateSyntaxError("a chain of comparisons with `in` is not for chat templates", node.lineno)
            operand.expr = _filtered(operand.expr, _SURVEYED)
        node.expr = _filtered(node.expr, _SURVEYED)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        self.generic_visit(node)
        # Text of the template is printed like a value, so that each piece is a step.
        node.nodes = [
            nodes.Const(piece.data, lineno=piece.lineno) if isinstance(piece, nodes.TemplateData) else piece
            for piece in node.nodes
        ]
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered(pair.key, _KEY)
        return _filtered(node, _MADE)

    def visit_Call(self, node: nodes.Call) -> nodes.Call:  # noqa: N802
        return self._with_counted_arguments(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:  # noqa: N802
        return self._with_counted_arguments(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802
        return self._with_counted_arguments(node)

    def _with_counted_arguments(self, node: _Called) -> _Called:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _filtered(node.dyn_args, _TURNS)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> NoReturn:  # noqa: N802
        raise TemplateSyntaxError("autoescape blocks are not for chat templates", node.lineno)


class _GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training; a server renders its inside."""

    tags = {"generation"}  # noqa: RUF012  jinja2's own declaration of it is a set.

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _finalize(_context: Context, value: object) -> str:
    # Taking the context keeps jinja2 from evaluating constants while it compiles, where no budget runs.
    budget.step()
    return text_of(value)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusalError(text_of(message))


def _surveyed(value: Any) -> Any:
    if isinstance(value, str):
        budget.read(value)
    else:
        budget.survey(value)
    return value


def _made(items: Any) -> Any:
    budget.make(len(items) * budget.ITEM)
    return items


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment; `strftime_now` is the clock a template may read."""

    # Compiled templates join their output with it.
    concat = staticmethod(joined)
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, strftime_now: Callable[[str], str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=ChainableUndefined,
            finalize=_finalize,
            optimized=False,
            cache_size=0,
            extensions=[loopcontrols, _GenerationBlocks],
        )
        self.tests = dict(TESTS)
        self.filters = {
            **FILTERS,
            _TURNS: turns,
            _CONCATENATED: concatenated,
            _COMPARED: compared,
            _SURVEYED: _surveyed,
            _KEY: check_key,
            _MADE: _made,
        }
        self.globals = {
            **{name: DEFAULT_NAMESPACE[name] for name in ("cycler", "joiner")},
            "dict": checked_dict,
            "namespace": lambda *args, **kwargs: Namespace(checked_dict(*args, **kwargs)),
            "range": _range,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: opaque(strftime_now(_short_form(form)), form),
        }
        self._formatter = SourcedFormatter(self, text_of)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Rewrite().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call is a step; a loop that calls itself counts its turns like any other."""
        budget.step()
        if isinstance(obj, LoopContext) and args:
            args = (turns(args[0]), *args[1:])
        _pay_for_call(obj, args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, list):
            budget.make(len(result) * budget.ITEM)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, once its result is known to be of bearable size."""
        budget.step()
        for side in (left, right):
            if isinstance(side, int):
                _refuse_large(side.bit_length())
        rule = _BINARY.get(operator)
        return rule(left, right) if rule is not None else _calculated(self.binop_table[operator], left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute or item; a method of text is one that keeps its origin."""
        if not isinstance(obj, str):
            return super().getattr(obj, attribute)
        budget.read(obj)
        if attribute in _TEXT_METHODS:
            return super().getattr(as_sourced(obj), attribute)
        if attribute in _TEXT_QUESTIONS:
            return super().getattr(obj, attribute)
        if hasattr(str, attribute):
            return self.unsafe_undefined(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item or attribute."""
        if isinstance(obj, str) and isinstance(argument, str):
            return self.getattr(obj, argument)
        if isinstance(argument, slice):
            return _made(super().getitem(obj, argument))
        return super().getitem(obj, check_key(argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only methods that are known to be harmless, and what jinja2's own objects offer."""
        if isinstance(obj, str):
            return attr in _TEXT_METHODS or attr in _TEXT_QUESTIONS
        for kind, methods in _OTHER_METHODS:
            if isinstance(obj, kind):
                return attr in methods
        return isinstance(obj, _OPEN_TYPES) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, in a form that keeps origins."""
        name = getattr(value, "__name__", "")
        text = getattr(value, "__self__", None)
        if not isinstance(text, str) or name not in {"format", "format_map"}:
            return None
        if name == "format_map":
            return lambda mapping: self._formatter.formatted(text, (), mapping)
        return lambda *args, **kwargs: self._formatter.formatted(text, args, kwargs)


def _pay_for_call(called: Any, args: tuple[Any, ...]) -> None:
    """Pay for what a method of a text, a list or a loop looks through."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, str):
        budget.read(owner, *args)
        if name in {"rfind", "rindex"} and args and isinstance(args[0], str):
            budget.make(len(owner) * len(args[0]) // budget.CHARACTERS_A_UNIT)
        elif name in {"startswith", "endswith"} and args and isinstance(args[0], tuple):
            budget.survey(args[0])
    elif isinstance(owner, LoopContext):
        budget.survey(args)
    elif isinstance(owner, list | tuple | dict) and name == "copy":
        budget.make(len(owner) * budget.ITEM)
    elif isinstance(owner, list | tuple) and args:
        pay_for_search(args[0], owner)
    elif isinstance(owner, dict) and args:
        check_key(args[0])


def _short_form(form: str) -> str:
    if len(form) > _LONGEST_FORM:
        raise ValueError(f"a form of strftime_now has at most {_LONGEST_FORM} characters, not {len(form)}")
    return plain(form)


def _calculated(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """An operator that is only for numbers: between the keys of objects it would make a set."""
    for side in (left, right):
        if not isinstance(side, int | float | Undefined):
            raise TypeError(f"a chat template calculates with numbers, not with {type(side).__name__}")
    return function(left, right)


def _range(*args: int) -> range:
    numbers = safe_range(*args)
    budget.make(len(numbers))
    return numbers


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return joined((left, right))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        budget.make((len(left) + len(right)) * budget.ITEM)
    return operator.add(left, right)


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _refuse_large(left.bit_length() + right.bit_length())
    for items, times in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(times, int):
            if isinstance(items, str):
                return as_sourced(items) * times if is_clients(items) else _repeated(items, times)
            budget.make(len(items) * max(0, times) * budget.ITEM)
    return operator.mul(left, right)


def _repeated(text: str, times: int) -> str:
    budget.make(len(text) * max(0, times))
    return text * times


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _refuse_large(base.bit_length() * max(0, exponent))
    return _calculated(operator.pow, base, exponent)


def _modulo(left: Any, right: Any) -> Any:
    return percent(left, right, text_of) if isinstance(left, str) else _calculated(operator.mod, left, right)


def _refuse_large(bits: int) -> None:
    if bits > _LARGEST_NUMBER_BITS:
        raise OverflowError(f"a number of more than {_LARGEST_NUMBER_BITS} bits")


_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {"+": _add, "*": _multiply, "**": _power, "%": _modulo}
