# SPDX-License-Identifier: Apache-2.0
"""Operators and methods that reach the function mode as one function keep their own names."""

import operator
import sys
from collections.abc import Callable

import pytest
import torch
from torch.overrides import TorchFunctionMode

from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.apis.operator_names import operator_name

pytestmark = pytest.mark.torch


class NameCalls(TorchFunctionMode):
    """Collects the name of every call, as the capture would write it."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.table = ApiTable()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(operator_name(self.table.lookup(func), sys._getframe(1)))
        return func(*args, **(kwargs or {}))


def names_in(source: str) -> list[str]:
    values = {
        "a": torch.ones(2, 2),
        "b": torch.ones(2, 2),
        "c": torch.tensor([[1, 2], [3, 4]]),
        "operator": operator,
    }
    with NameCalls() as seen:
        exec(compile(source, "<test>", "exec"), values)
    return seen.names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a + b", "__add__"),
        ("a - b", "__sub__"),
        ("a * b", "__mul__"),
        ("a / b", "__truediv__"),
        ("a // b", "__floordiv__"),
        ("a % b", "__mod__"),
        ("a ** b", "__pow__"),
        ("a @ b", "__matmul__"),
        ("c & c", "__and__"),
        ("c | c", "__or__"),
        ("c ^ c", "__xor__"),
        ("c << 1", "__lshift__"),
        ("c >> 1", "__rshift__"),
        ("1 & c", "__rand__"),
        ("1 | c", "__ror__"),
        ("1 ^ c", "__rxor__"),
        ("1 - a", "__rsub__"),
        ("1 / a", "__rtruediv__"),
        ("2 ** a", "__rpow__"),
        ("1 // a", "__rfloordiv__"),
        ("-a", "__neg__"),
        ("+a", "__pos__"),
        ("~c", "__invert__"),
        ("a == b", "__eq__"),
        ("a != b", "__ne__"),
        ("a < b", "__lt__"),
        ("a <= b", "__le__"),
        ("a > b", "__gt__"),
        ("a >= b", "__ge__"),
        ("1 < a", "__gt__"),
        ("a += b", "__iadd__"),
        ("a -= b", "__isub__"),
        ("a *= b", "__imul__"),
        ("a /= b", "__itruediv__"),
        ("a //= b", "__ifloordiv__"),
        ("a %= b", "__imod__"),
        ("a **= b", "__ipow__"),
        ("a @= b", "__matmul__"),
        ("c &= c", "__iand__"),
        ("c |= c", "__ior__"),
        ("c ^= c", "__ixor__"),
        ("c <<= 1", "__ilshift__"),
        ("a[0]", "__getitem__"),
        ("a[0:1]", "__getitem__"),
        ("a[0] = 1", "__setitem__"),
        ("a[0:1] = 1", "__setitem__"),
    ],
)
def test_an_operator_has_the_name_of_its_dunder_method(source, name):
    assert names_in(source) == [name]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a.add(b)", "add"),
        ("a.sub(b)", "sub"),
        ("a.mul(b)", "mul"),
        ("a.div(b)", "div"),
        ("a.matmul(b)", "matmul"),
        ("a.remainder(b)", "remainder"),
        ("a.neg()", "neg"),
        ("a.eq(b)", "eq"),
        ("a.lt(b)", "lt"),
        ("a.add_(b)", "add_"),
        ("a.mul_(b)", "mul_"),
        ("c.bitwise_and(c)", "bitwise_and"),
        ("operator.add(a, b)", "add"),
        ("a.__add__(b)", "add"),
    ],
)
def test_a_call_has_the_name_of_its_method(source, name):
    assert names_in(source) == [name]


def test_an_augmented_element_is_three_operators():
    assert names_in("a[0] += 1") == ["__getitem__", "__iadd__", "__setitem__"]


def test_a_method_called_within_an_operator_expression_keeps_its_name():
    assert names_in("a.mul(b) + a.sub(b) * 2") == ["mul", "sub", "__mul__", "__add__"]


def test_comparisons_in_conditions_and_loops_are_operators():
    source = "x = torch.ones(())\nwhile x < 3:\n    x = x + 1\nif x != 3:\n    x = -x"
    assert names_in("import torch\n" + source).count("__lt__") == 3
    assert names_in("import torch\n" + source).count("__ne__") == 1


def test_one_call_site_serves_different_functions():
    def both(x, y):
        return x - y

    one = torch.ones(2)
    with NameCalls() as seen:
        both(one, 1)
        both(1, one)
    assert seen.names == ["__sub__", "__rsub__"]


def test_names_stay_right_once_the_interpreter_has_specialised_the_code():
    def loop(step: Callable[[], object]):
        for _ in range(200):
            step()

    x = torch.ones(2)
    with NameCalls() as seen:
        loop(lambda: x + x)
        loop(lambda: x.add(x))
    assert seen.names == ["__add__"] * 200 + ["add"] * 200


def test_without_a_frame_the_method_name_is_used():
    assert operator_name(ApiTable().lookup(torch.Tensor.add), None) == "add"
