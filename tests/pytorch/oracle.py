# SPDX-License-Identifier: Apache-2.0
"""What a dump should say, worked out without the tool.

- `Statistics.of`: the four numbers of a tensor, in float64 by torch.
- `ModuleOracle`: what every module of a model received and returned, by ordinary forward hooks, and
  its gradients, by torch's full backward hooks.
- `ApiOracle`: what every API call received and returned, seen by a function mode of its own, and
  its gradients: the call alone is repeated on copies of its inputs and `torch.autograd.grad` is
  given the gradients that arrived at its outputs.

Nothing here imports msprobe. A tool that is right agrees with it for two runs of one seed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

Path = tuple[int | str, ...]
"""Where a value stands in a record: ``("input_args", 0)``, ``("output", 0, "hidden")``."""


@dataclass(frozen=True)
class Statistics:
    """Exact facts about a tensor; None where a statistic is undefined.

    `mean_scale` is the mean of the absolute values: the error of a mean is relative to it.
    """

    dtype: str
    shape: tuple[int, ...]
    max: float | None
    min: float | None
    mean: float | None
    norm: float | None
    mean_scale: float = 0.0

    @classmethod
    def of(cls, tensor: Tensor) -> Statistics | None:
        """The statistics of `tensor`; None for values without plain elements."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            return cls._of(tensor)

    @classmethod
    def _of(cls, tensor: Tensor) -> Statistics | None:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.is_meta:
            return None
        if tensor.is_nested or tensor.layout is not torch.strided:
            return None
        values = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().clone()
        names = (str(tensor.dtype), tuple(tensor.shape))
        if values.numel() == 0:
            return cls(*names, None, None, None, None)
        if values.dtype == torch.bool:
            return cls(*names, float(values.any()), float(values.all()), None, None)
        if values.is_complex():
            values = values.to(torch.complex128).abs()
        values = values.to(torch.float64)
        return cls(
            *names,
            values.max().item(),
            values.min().item(),
            values.mean().item(),
            values.square().sum().sqrt().item(),
            values.abs().mean().item(),
        )

    def disagreements(self, record: Any, rel: float) -> list[str]:
        """What a tensor's record says otherwise; `rel` is the relative error allowed."""
        if not isinstance(record, Mapping):
            return [f"no tensor record but {record!r}"]
        found = []
        if record.get("dtype") != self.dtype:
            found.append(f"dtype {record.get('dtype')} for {self.dtype}")
        if tuple(record.get("shape", ())) != self.shape:
            found.append(f"shape {record.get('shape')} for {list(self.shape)}")
        if record.get("written") or record.get("undefined"):
            return found  # no input of the call; see `test_unread_memory`
        scales = {"Max": self.norm, "Min": self.norm, "Mean": self.mean_scale, "Norm": self.norm}
        for key, expected in zip(scales, (self.max, self.min, self.mean, self.norm), strict=True):
            if not _agree(expected, record.get(key), rel * (scales[key] or 0.0)):
                found.append(f"{key} {record.get(key)} for {expected}")
        return found


def _agree(expected: float | None, given: Any, tolerance: float) -> bool:
    if expected is None or given is None:
        return expected is None and given is None
    if math.isnan(expected) or math.isinf(expected):
        return float(given) == expected or (math.isnan(expected) and math.isnan(given))
    return abs(float(given) - expected) <= tolerance


def tensors_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in nested arguments, with its place; dataclasses and mappings by name."""
    if isinstance(value, Tensor):
        yield path, value
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        value = value._asdict()
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_in(item, (*path, index))


def outputs_in(value: Any) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor of a result as records hold it: a tuple spreads, the rest is one element."""
    if isinstance(value, tuple) and (not hasattr(value, "_fields") or _is_return_type(value)):
        for index, item in enumerate(value):
            yield from tensors_in(item, ("output", index))
    elif isinstance(value, tuple):
        yield from tensors_in(value, ("output",))
    else:
        yield from tensors_in(value, ("output", 0))


def _is_return_type(value: tuple[Any, ...]) -> bool:
    return hasattr(value, "n_sequence_fields")


def at(record: Any, path: Path) -> Any:
    """The entry of a record at `path`; None when there is none."""
    for key in path:
        with suppress(KeyError, IndexError, TypeError):
            record = record[key]
            continue
        return None
    return record


@dataclass
class Observation:
    """What one call saw: statistics by place in its forward record and in its backward record.

    `repeats_inputs`: one tensor was passed twice, so torch's hooks tell its gradient in shares.
    """

    forward: dict[Path, Statistics] = field(default_factory=dict)
    backward: dict[Path, Statistics] = field(default_factory=dict)
    repeats_inputs: bool = False

    def saw(self, pairs: Iterator[tuple[Path, Tensor]]) -> None:
        """Add tensors of the forward call as they are now."""
        for path, tensor in pairs:
            statistics = Statistics.of(tensor)
            if statistics is not None:
                self.forward[path] = statistics

    def got(self, path: Path, gradient: Tensor | None) -> None:
        """Add a gradient."""
        statistics = None if gradient is None else Statistics.of(gradient)
        if statistics is not None:
            self.backward[path] = statistics


def compare(expected: Mapping[Path, Statistics], record: Any, rel: float) -> list[str]:
    """Where `record` disagrees with `expected`, in words."""
    return [
        f"{'.'.join(map(str, path))}: {problem}"
        for path, statistics in expected.items()
        for problem in statistics.disagreements(at(record, path), rel)
    ]


class ModuleOracle:
    """Watches every submodule of `model` with hooks of its own.

    Attributes:
        calls: ``Module.fc.Linear.forward.0`` -> what that call saw.
    """

    def __init__(self, model: nn.Module, *, gradients: bool, index: int | None = None) -> None:
        """Start watching; `index` is the model's place when a run observes several."""
        prefix = "Module." if index is None else f"Module.{index}."
        self.calls: dict[str, Observation] = {}
        self._counts: Counter[str] = Counter()
        self._open: dict[nn.Module, list[Observation]] = {}
        self._backward: dict[nn.Module, list[Observation]] = {}
        self._handles = []
        for name, module in model.named_modules():
            if not name:
                continue
            label = f"{prefix}{name}.{type(module).__name__}"
            self._handles += self._watch(module, label, gradients)

    def _watch(self, module: nn.Module, label: str, gradients: bool) -> list[Any]:
        # Functions, not methods: a deep copy of the model must not take a copy of the oracle along.
        def before(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if called is module and self._counts_now(module):
                self._begin(module, label, args, kwargs)

        def after(called: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if called is module and self._counts_now(module):
                seen = self._open[module].pop()
                seen.saw(outputs_in(output))
                if any(t.requires_grad for _, t in outputs_in(output)):
                    self._backward.setdefault(module, []).append(seen)

        def gradient(called: nn.Module, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            if called is module:
                self._gradient(self._backward[module].pop(), inputs, outputs)

        handles: list[Any] = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after),
        ]
        if gradients:
            handles.append(module.register_full_backward_hook(gradient))
        return handles

    def _counts_now(self, module: nn.Module) -> bool:
        """Not in a recomputation, and not where evaluation fuses several modules into one call."""
        return module.training and torch._C._current_graph_task_id() == -1

    def _begin(
        self, module: nn.Module, label: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        seen = Observation()
        seen.saw(tensors_in(args, ("input_args",)))
        seen.saw(tensors_in(kwargs, ("input_kwargs",)))
        seen.saw(tensors_in(dict(module._parameters), ("parameters",)))
        passed = [id(tensor) for _, tensor in tensors_in(args)]
        seen.repeats_inputs = len(set(passed)) < len(passed)
        self.calls[f"{label}.forward.{self._counts[label]}"] = seen
        self._counts[label] += 1
        self._open.setdefault(module, []).append(seen)

    def _gradient(
        self, seen: Observation, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> None:
        for index, gradient in enumerate(outputs):
            seen.got(("input", index), gradient)
        for index, gradient in enumerate(() if seen.repeats_inputs else inputs):
            seen.got(("output", index), gradient)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


OPERATORS = frozenset(
    {
        "add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder", "pow",
        "matmul", "neg", "positive", "bitwise_not", "bitwise_and", "bitwise_or",
        "bitwise_xor", "logical_and", "eq", "ne", "lt", "le", "gt", "ge", "add_", "sub_",
        "mul_", "div_", "rsub", "__rsub__", "__rdiv__", "__radd__", "__rmul__", "__rpow__",
        "abs"
    }
)  # fmt: skip
"""Methods that an operator of Python reaches, too; a function mode cannot tell which it was."""


def api_name(func: Any) -> str | None:
    """``Functional.linear`` for a function; None where its record's name is not sure."""
    path = resolve_name(func) or ""
    known = re.fullmatch(r"torch\.(?:(nn\.functional|Tensor|[a-z]+)\.)?(\w+)", path)
    if known is None:
        return None
    room, api = known.groups()
    if room == "Tensor":
        return None if api in OPERATORS else f"Tensor.{api}"
    if room == "nn.functional":
        return f"Functional.{api}"
    if api in ("lstm", "gru", "lstm_cell", "gru_cell"):  # what nn.LSTM and its like call
        return f"VF.{api}"
    return f"Torch.{api}"


@dataclass
class _Replay:
    """A call kept so that it can be repeated alone."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    leaves: dict[Path, Tensor]
    random_state: Tensor
    autocast: bool
    observation: Observation
    output_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_paths: dict[int, Path] = field(default_factory=dict)

    def run(self) -> None:
        """Repeat the call on its copies and take the gradients with respect to its inputs."""
        precision = torch.autocast("cpu", torch.bfloat16, enabled=self.autocast)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), precision:
            torch.set_rng_state(self.random_state)
            output = self.func(*self.args, **self.kwargs)
        found = [tensor for _, tensor in outputs_in(output)]
        wanted = [t for t in dict.fromkeys(self.leaves.values()) if t.requires_grad]
        given = {found[i]: gradient for i, gradient in self.output_gradients.items()}
        if not wanted or not given:
            return
        from_outside = [self._from_outside(output, given) for output in given]
        for index, share in zip(self.output_gradients, from_outside, strict=True):
            path = self.output_paths[index]
            if share.any():
                self.observation.got(path, share)
            else:  # consumed inside the call alone
                del self.observation.backward[path]
        gradients = torch.autograd.grad(list(given), wanted, from_outside, allow_unused=True)
        by_leaf = dict(zip(wanted, gradients, strict=True))
        for path, leaf in self.leaves.items():
            # one tensor passed twice has one gradient, which the record has at its first place
            self.observation.got(path, by_leaf.pop(leaf, None))

    @staticmethod
    def _from_outside(output: Tensor, given: dict[Tensor, Tensor]) -> Tensor:
        """Without what an output gets from another one made of it (an LSTM cell's c from its h)."""
        total = given[output]
        for other, gradient in given.items():
            if other is not output:
                (share,) = torch.autograd.grad(
                    other, output, gradient, allow_unused=True, retain_graph=True
                )
                total = total if share is None else total - share
        return total


class ApiOracle(TorchFunctionMode):
    """Sees the outermost API calls of one thread, outside of backward passes.

    Attributes:
        calls: ``Functional.linear.0.forward`` -> what that call saw.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Observation] = {}
        self._counts: Counter[str] = Counter()
        self._replays: list[_Replay] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        base = api_name(func)
        if base is None or base.endswith(("backward", "grad")):
            return func(*args, **kwargs)
        seen = self.calls[f"{base}.{self._counts[base]}.forward"] = Observation()
        self._counts[base] += 1
        seen.saw(tensors_in(args, ("input_args",)))
        seen.saw(tensors_in(kwargs, ("input_kwargs",)))
        replay = self._prepare(func, args, kwargs, seen)
        output = func(*args, **kwargs)
        seen.saw(outputs_in(output))
        if replay is not None:
            self._watch(replay, output)
        return output

    def _prepare(self, func: Any, args: Any, kwargs: Any, seen: Observation) -> _Replay | None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        inputs = [t for _, t in tensors_in((args, kwargs))]
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in inputs):
            return None
        if any(type(t) not in (Tensor, nn.Parameter) or t.is_nested for t in inputs):
            return None
        leaves: dict[int, Tensor] = {}
        replay_args = self._copied(args, leaves)
        replay_kwargs = self._copied(kwargs, leaves)
        places: dict[Path, Tensor] = {}
        for path, tensor in tensors_in(args, ("output",)):
            places[path] = leaves[id(tensor)]
        for path, tensor in tensors_in(kwargs):
            places[("output_kwargs", ".".join(map(str, path)))] = leaves[id(tensor)]
        state, autocast = torch.get_rng_state(), torch.is_autocast_enabled("cpu")
        return _Replay(func, replay_args, replay_kwargs, places, state, autocast, seen)

    def _copied(self, value: Any, leaves: dict[int, Tensor]) -> Any:
        """The arguments with copies for tensors; one tensor passed twice stays one tensor."""
        if isinstance(value, Tensor):
            if id(value) not in leaves:
                copy = value.detach().clone()
                leaves[id(value)] = copy.requires_grad_() if value.requires_grad else copy
            leaf = leaves[id(value)]
            # an in-place call may not write to a leaf, so it gets a copy that leads back to it
            return leaf.clone() if leaf.requires_grad else leaf
        if isinstance(value, dict):
            return {key: self._copied(item, leaves) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._copied(item, leaves) for item in value)
        return value

    def _watch(self, replay: _Replay, output: Any) -> None:
        watched = False
        for index, (path, tensor) in enumerate(outputs_in(output)):
            if tensor.requires_grad and not tensor.is_leaf:
                watched = True
                tensor.register_hook(_keeper(replay, index, path))
        if watched:
            self._replays.append(replay)

    def finish(self) -> None:
        """Work out the gradients; call this after the backward pass, with the mode off."""
        for replay in self._replays:
            replay.run()
        self._replays.clear()


def _keeper(replay: _Replay, index: int, path: Path) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        if index not in replay.output_gradients:  # a later pass is a record of its own
            replay.output_gradients[index] = gradient.detach().clone()
            replay.output_paths[index] = ("input", *path[1:])
            replay.observation.got(("input", *path[1:]), gradient)

    return keep
