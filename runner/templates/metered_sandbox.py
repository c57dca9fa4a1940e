"""A Jinja sandbox whose templates pay for all that they do, and raise ``Unsure`` before a render costs much.

A round of a loop pays for the nodes of its body, a macro for those of the template, an operation on values for their size. Only
nodes and functions of known cost are run. What a template does otherwise stays the same. Knows no rows and no tokens.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.visitor import NodeTransformer

from .jinja_sandbox import BoundedEnvironment
from .render_costs import (
    WORDY,
    counted,
    give_up,
    paid_filter,
    paid_pieces,
    paid_test,
    pay,
    pay_text_method,
    percent_size,
    size_of,
    start_budget,
    words,
    written,
)

_NODES = words(
    "Template Output TemplateData For If Macro CallBlock FilterBlock With Assign AssignBlock ExprStmt Continue Break Scope Name NSRef Const"
    " Tuple List Dict Pair Keyword CondExpr Filter Test Call Getitem Getattr Slice Concat Compare Operand Add Sub Mul Div FloorDiv Mod Pow"
    " Not And Or Neg Pos ExtensionAttribute"
)
_METHODS = words("items keys values get copy index count is_integer cycle changed")
_GLOBALS = ("range", "dict", "namespace", "raise_exception", "strftime_now")


class _MeteredTemplate(Template):
    def generate(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        start_budget()
        try:
            yield from paid_pieces(self.root_render_func(self.new_context(dict(*args, **kwargs))))
        except Exception:
            yield self.environment.handle_exception()

    def render(self, *args: Any, **kwargs: Any) -> str:
        return "".join(self.generate(*args, **kwargs))


class MeteredEnvironment(BoundedEnvironment):
    """A sandbox whose templates raise Unsure where a render's cost is unknown or large.

    Call ``meter_names`` when all filters, tests and globals are in place.
    """

    template_class = _MeteredTemplate

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._weight = 1
        self._cheap: frozenset[int] = frozenset()

    def meter_names(self) -> None:
        """Makes all filters and tests pay, and notes which globals may be called."""
        self.filters.update({name: paid_filter(name, filter_) for name, filter_ in self.filters.items()})
        self.bound_filters()  # what they refuse needs no other process
        payments: dict[str, Any] = {" paid": _paid, " rounds": _rounds, " joined": _joined, " sum": _sum}
        self.filters.update(payments)  # no template can spell these names
        self.tests.update({name: paid_test(name, test) for name, test in self.tests.items()})
        self._cheap = frozenset(id(self.globals[name]) for name in _GLOBALS if name in self.globals)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> Any:
        self._weight = max(self._weight, _count(source))
        source = _Payments().visit(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def make_globals(self, d: Any) -> dict[str, Any]:
        """Returns a template's global names as one mapping: each render copies it, and Jinja's chain of mappings takes long to copy."""
        return {**self.globals, **(d or {})}

    def concat(self, pieces: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
        """Joins the text of a block or macro."""
        pieces = list(pieces)
        pay(sum(map(len, pieces)) + len(pieces))
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Returns the operator's value. Raises as BoundedEnvironment, and Unsure."""
        self.check_binop(operator, left, right)
        match operator, left, right:
            case "*", int(), Sized():
                pay(left * len(right))
            case "*", Sized(), int():
                pay(len(left) * right)
            case "%", str(), _:
                pay(percent_size(left, right))
            case _:
                pass
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja names them
        """Returns the value of a call in a template. Raises as BoundedEnvironment, and Unsure."""
        __self.check_call(__obj, args, kwargs)
        __self._pay_call(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def _pay_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if isinstance(function, Macro | LoopContext):
            return pay(self._weight)
        if isinstance(function, Undefined):
            return None
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # Jinja wraps str.format
        name = getattr(function, "__name__", "")
        if isinstance(owner, str):
            return pay_text_method(owner, name, args, kwargs)
        if isinstance(owner, Extension):
            return pay(1 + written())  # transformers joins what is written at each {% generation %}
        if id(function) in self._cheap or (isinstance(owner, dict | list | tuple | float | LoopContext) and name in _METHODS):
            own = size_of(owner) if name in ("index", "count") else len(owner) if isinstance(owner, Sized) else 0
            return pay(1 + own + WORDY * sum(map(size_of, (*args, *kwargs.values()))))
        return give_up(f"the cost of {name} is unknown")


def _count(node: nodes.Node) -> int:
    return 1 + sum(map(_count, node.iter_child_nodes()))


class _Payments(NodeTransformer):
    """Puts payments into a template's tree where it loops, compares, joins and slices."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node).__name__ not in _NODES:
            give_up(f"the cost of {type(node).__name__} is unknown")
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as Jinja names them
        weight = 1 + sum(map(_count, [*node.body, *([node.test] if node.test else [])]))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, " rounds", nodes.Const(weight))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        constant = isinstance(node.expr, nodes.Const) or isinstance(node.ops[0].expr, nodes.Const)
        if len(node.ops) == 1 and constant and node.ops[0].op not in ("in", "notin"):
            return node  # it ends with the shorter side
        parts: list[Any] = [node, *node.ops]
        for part in parts:
            if not isinstance(part.expr, nodes.Const):
                part.expr = _filtered(part.expr, " paid")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), " joined")

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        terms: list[nodes.Expr] = []
        first: nodes.Expr = node
        while isinstance(first, nodes.Add):  # a + b + c is (a + b) + c
            terms.insert(0, self.visit(first.right))
            first = first.left
        return _filtered(nodes.List([self.visit(first), *terms], lineno=node.lineno), " sum")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, " rounds", nodes.Const(1))
        return node


def _filtered(node: Any, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


# Each filter takes the context, so that Jinja does not compute it once and for all when it compiles.


@pass_context
def _paid(_: Context, value: Any) -> Any:
    pay(len(value) if isinstance(value, str) else size_of(value))
    return value


@pass_context
def _rounds(_: Context, value: Any, units: int) -> Any:
    if hasattr(type(value), "__len__"):
        pay(len(value) * units)
        return value
    return counted(iter(value), units)


@pass_context
def _joined(_: Context, values: list[Any]) -> str:
    pay(sum(len(value) if isinstance(value, str) else WORDY * size_of(value) for value in values))
    return "".join(map(str, values))


@pass_context
def _sum(_: Context, values: list[Any]) -> Any:
    if all(type(value) is str for value in values):
        pay(sum(map(len, values)))
        return "".join(values)
    total = values[0]
    for value in values[1:]:
        pay(sum(len(side) for side in (total, value) if hasattr(type(side), "__len__")))
        total = total + value
    return total
