# SPDX-License-Identifier: Apache-2.0
"""Graphs that a backend compiled: which of them is wrong first, and from which operator on."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from msprobe.checks.compile_check import Probe, is_fault_of, judged_pair
from msprobe.files import write_report
from msprobe.pytorch.live.operator_facts import tensors_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.arguments import converted
from msprobe.replay.runner import Noise

Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

_LINE: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(slots=True)
class SeenGraph:
    """One graph, with the inputs and outputs of its first run.

    Attributes:
        graph: as dynamo captured it.
        inputs: of the first run.
        outputs: the compiled code's.
    """

    graph: GraphModule
    inputs: tuple[Any, ...] = ()
    outputs: list[torch.Tensor] = field(default_factory=list)
    has_run: bool = False


@dataclass(slots=True)
class GraphWatch:
    """A backend that compiles with another one, and keeps what it compiled.

    Attributes:
        compiler: the other one.
        seen: the graphs, in the order of their compilation.
    """

    compiler: Compiler
    seen: list[SeenGraph] = field(default_factory=list)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph."""
        one = SeenGraph(copy.deepcopy(graph))  # compilers change the graph
        self.seen.append(one)
        compiled = self.compiler(graph, inputs)

        def run(*args: Any) -> Any:
            if one.has_run:
                return compiled(*args)
            one.inputs = _copies(args)
            out = compiled(*args)
            one.outputs = [tensor.detach().clone() for tensor in tensors_of(_as_list(out))]
            one.has_run = True
            return out

        return run

    def save(self, folder: Path, name: str) -> None:
        """Write the code of each graph, ``{name}.graph{n}.py``."""
        for number, one in enumerate(self.seen):
            text = one.graph.print_readable(print_output=False)
            write_report(folder / f"{name}.graph{number}.py", text, warns=False)

    def first_wrong(self) -> str:
        """Return the first graph whose results are wrong, and its operator; empty for none."""
        for number, one in enumerate(self.seen):
            if one.has_run and _is_wrong(one.graph, one.inputs, one.outputs):
                node = self._first_wrong_node(one)
                return f"graph {number}" + (f": {_words(node)}" if node is not None else "")
        return ""

    def _first_wrong_node(self, one: SeenGraph) -> Node | None:
        """Return the first operator with which the graph, ended after it, is wrong."""
        nodes = [node for node in one.graph.graph.nodes if node.op.startswith("call_")]
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_wrong_until(one, nodes[middle]):
                high = middle
            else:
                low = middle + 1
        return nodes[low] if nodes else None

    def _is_wrong_until(self, one: SeenGraph, last: Node) -> bool:
        """Return whether the part of a graph up to an operator is compiled wrongly."""
        part = _part(one.graph, last)
        given = _copies(one.inputs)
        with torch.no_grad():
            compiled = self.compiler(copy.deepcopy(part), list(given))
            out = tensors_of(_as_list(compiled(*given)))
        return bool(out) and _is_wrong(part, one.inputs, out)


def _part(graph: GraphModule, last: Node) -> GraphModule:
    """Return a graph that ends after a node, with all values that later nodes would use."""
    made = torch.fx.Graph()
    known: dict[Node, Node] = {}
    taken: list[Node] = []
    for node in graph.graph.nodes:
        if node.op == "output":
            break
        known[node] = made.node_copy(node, lambda one: known[one])
        taken.append(node)
        if node is last:
            break
    inside = set(taken)
    kept = [
        known[node]
        for node in taken
        if node.op.startswith("call_")
        and (node is last or any(u not in inside for u in node.users))
    ]
    for node in graph.graph.nodes:  # a compiled function has all its inputs
        if node.op == "placeholder" and node not in known:
            known[node] = made.node_copy(node, lambda one: known[one])
    made.output(tuple(kept))
    return GraphModule(graph, made)


def _is_wrong(graph: GraphModule, inputs: Sequence[Any], found: Sequence[torch.Tensor]) -> bool:
    """Return whether the outputs of a compiled graph are wrong."""
    eager = _run(graph, inputs, None)
    exact = _run(graph, inputs, torch.float64)
    if not len(eager) == len(exact) == len(found):
        return False

    def probes(index: int) -> Probe:
        return lambda noise: from_torch(_run(graph, inputs, torch.float64, noise)[index])

    shapes = [one.shape for one in tensors_of(list(inputs))]
    for index, one in enumerate(found):
        own, other = (
            judged_pair(from_torch(which), from_torch(exact[index]), probes(index), shapes)
            for which in (one, eager[index])
        )
        if is_fault_of(own, other):
            return True
    return False


def _run(
    graph: GraphModule,
    inputs: Sequence[Any],
    dtype: torch.dtype | None,
    noise: Noise | None = None,
) -> list[torch.Tensor]:
    """Return the outputs of a graph that is interpreted."""
    mode = None if noise is None else NoiseMode(noise)

    def given(value: Any, _: object) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        own = value.detach().clone()
        if not own.dtype.is_floating_point:
            return own
        own = own if dtype is None else own.to(dtype)
        return own if mode is None else mode.disturbed(own)

    torch.manual_seed(0)
    with torch.no_grad():
        own = converted(list(inputs), given)
        if mode is None:
            out = torch.fx.Interpreter(graph).run(*own)
        else:
            with mode:
                out = torch.fx.Interpreter(graph).run(*own)
    return tensors_of(_as_list(out))


def _copies(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one.detach().clone() if isinstance(one, torch.Tensor) else one for one in inputs)


def _as_list(out: Any) -> Any:
    return list(out) if isinstance(out, (list, tuple)) else [out]


def _words(node: Node) -> str:
    """Return an operator with its source line: ``relu (model.py:12)``."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    return name + (f" ({Path(lines[-1][0]).name}:{lines[-1][1]})" if lines else "")
