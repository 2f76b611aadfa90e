# SPDX-License-Identifier: Apache-2.0
"""Features of attention, linear layers and routers that can be interpreted, of each call.

The formulas take arrays of float32 of any library with NumPy's names. Nothing here draws random
numbers: the spectral norm begins with the row sums of the matrix.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import CHUNK, MonitorKeys

logger = logging.getLogger(__name__)

_POWER_ITERATIONS: Final = 3
_LEAST_INPUTS: Final = 2  # query and key
_MATRIX: Final = 2
_HEADS: Final = 4
_TINY: Final = 1e-30
_PER_MICRO_STEP: Final = (Stream.ATTENTION, Stream.ROUTER_LOGIT)

Array = Any
"""An array, or tensor, of float32."""


class ArrayLibrary(NamedTuple):
    """The functions of a framework that the formulas need.

    Attributes:
        names: its module with functions as NumPy names them: `torch` or `numpy`.
        kind: the class of its tensors.
        tables: the classes of tables of embeddings, which are not linear.
        array: returns the values of a tensor as float32; None for what has none.
        numbers: returns arrays without dimensions as numbers, with one wait for all.
    """

    names: Any
    kind: type
    tables: tuple[type, ...]
    array: Callable[[Any], Array | None]
    numbers: Callable[[list[Array]], list[float]]


class _Found(NamedTuple):
    stream: Stream
    micro_step: int
    op: str
    key: Key
    value: Array


class Features:
    """Computes the features that `l2_targets` asks for.

    Args:
        library: of the framework.
        models: the modules of each model with their names.
        keys: choose modules, and say the order of dimensions of query and key.
    """

    def __init__(
        self,
        library: ArrayLibrary,
        models: Iterable[Iterable[tuple[str, Any]]],
        keys: MonitorKeys,
    ) -> None:
        self._library = library
        named = {name: one for modules in models for name, one in modules}
        self._modules = _chosen_modules(named, keys, library)
        self._sa_order = keys.sa_order
        self._found: list[_Found] = []
        self._weighed: set[tuple[Stream, Key]] = set()

    def begin_step(self) -> None:
        """Forget what was computed of a step that is not written."""
        self._found.clear()
        self._weighed.clear()

    def take(
        self,
        rows: StepRows,
        path: str,
        key: Key,
        micro_step: int,
        values: Sequence[Any],
        is_output: bool,
    ) -> None:
        """Compute the features of a call; a weight's once a step.

        Args:
            rows: of the step.
            path: name of the module in its model.
            key: its name as shown, chunk and number of the call.
            micro_step: of the call.
            values: its positional arguments, or the tensors that it returned.
            is_output: whether they are the latter.
        """
        for stream, modules in self._modules.items():
            module = modules.get(path)
            if module is None or stream not in rows.streams:
                continue
            if is_output is not (stream is Stream.ROUTER_LOGIT):
                continue
            kept = micro_step if stream in _PER_MICRO_STEP else 0
            if stream not in _PER_MICRO_STEP:
                if (stream, key) in self._weighed:
                    continue
                self._weighed.add((stream, key))
            suffix, found = self._features(stream, module, values)
            shown = key._replace(name=f"{key.name}.{suffix}")
            self._found += (_Found(stream, kept, op, shown, one) for op, one in found.items())

    def put(self, rows: StepRows) -> None:
        """Put the numbers of the step, fetched together."""
        found, self._found = self._found, []
        if found:
            values = self._library.numbers([one.value for one in found])
            for one, value in zip(found, values, strict=True):
                rows.put_number(one.key, value, one.micro_step, stream=one.stream, op=one.op)

    def _features(
        self, stream: Stream, module: Any, values: Sequence[Any]
    ) -> tuple[str, dict[str, Array]]:
        xp, kind, _, array, _ = self._library
        tensors = [array(one) for one in values if isinstance(one, kind)]
        if stream is Stream.ATTENTION:
            return "attention", attention_features(xp, tensors, self._sa_order)
        if stream is Stream.ROUTER_LOGIT:
            return "moe_router", router_logit_features(xp, tensors[0] if tensors else None)
        weight = weight_of(module, kind)
        matrix = None if weight is None else array(weight)
        if stream is Stream.LINEAR:
            return "linear", linear_features(xp, matrix)
        return "moe_router", router_weight_features(xp, matrix)


def _chosen_modules(
    modules: Mapping[str, Any], keys: MonitorKeys, library: ArrayLibrary
) -> dict[Stream, dict[str, Any]]:
    """Return the modules of `l2_targets`; without names, all that are linear."""
    found: dict[Stream, dict[str, Any]] = {}
    for word, names in keys.l2_targets.items():
        stream = Stream(word)
        wanted = {CHUNK.sub("", name) for name in names}
        if stream is Stream.LINEAR and not names:
            wanted = {
                name
                for name, one in modules.items()
                if weight_of(one, library.kind) is not None and not isinstance(one, library.tables)
            }
        found[stream] = {name: one for name, one in modules.items() if name in wanted}
        for name in wanted - found[stream].keys():
            logger.warning("l2_targets.%s: there is no module %r", word, name)
    return found


def weight_of(module: Any, kind: type) -> Any:
    """Return the matrix of a module, None without one.

    Args:
        module: the module.
        kind: the class of tensors.
    """
    for name in ("weight", "wg"):
        found = getattr(module, name, None)
        found = getattr(found, "weight", found)  # `wg` may be a linear layer
        if isinstance(found, kind) and getattr(found, "ndim", 0) == _MATRIX:
            return found
    return None


def attention_features(xp: Any, inputs: Sequence[Array | None], order: str) -> dict[str, Array]:
    """Return entropy and mean of the largest weights of causal attention, first batch and head.

    Args:
        xp: the library.
        inputs: query and key first, of four dimensions.
        order: of their dimensions, ``s,b,h,d`` or ``b,s,h,d``.
    """
    if len(inputs) < _LEAST_INPUTS:
        return {}
    query, key = inputs[:2]
    if query is None or key is None or query.ndim != _HEADS or key.ndim != _HEADS:
        return {}
    first = (slice(None), 0, 0) if order == "s,b,h,d" else (0, slice(None), 0)
    q, k = query[first], key[first]
    scores = q @ k.T / math.sqrt(q.shape[-1])
    scores = xp.where(xp.tril(xp.ones_like(scores)) > 0, scores, -math.inf)
    weights = xp.exp(scores - xp.amax(scores, -1)[:, None])
    weights = weights / xp.sum(weights, -1)[:, None]
    logarithms = xp.log(xp.where(weights > _TINY, weights, _TINY))
    return {
        "entropy": -xp.sum(weights * logarithms, -1).mean(),
        "softmax_max": xp.amax(weights, -1).mean(),
    }


def linear_features(xp: Any, matrix: Array | None) -> dict[str, Array]:
    """Return the spectral norm of a matrix, and the root of its stable rank.

    The spectral norm is estimated from below, by three power iterations. The stable rank is the
    squared quotient of Frobenius and spectral norm; both features are 0 for a matrix of zeros.
    """
    if matrix is None:
        return {}
    vector = xp.sum(matrix, 0)
    vector = xp.where(_norm(xp, vector) > 0, vector, xp.ones_like(vector))
    for _ in range(_POWER_ITERATIONS):
        vector = matrix.T @ (matrix @ vector)
        vector = vector / (_norm(xp, vector) + _TINY)
    spectral = _norm(xp, matrix @ vector)
    return {"kernel_norm": spectral, "sr": _norm(xp, matrix) / (spectral + _TINY)}


def router_weight_features(xp: Any, weight: Array | None) -> dict[str, Array]:
    """Return the mean cosine between the vectors of two experts.

    Experts are the shorter dimension of the weight: it is (experts, width) or (width, experts).
    """
    if weight is None or min(weight.shape) < _MATRIX:
        return {}
    weight = weight if weight.shape[0] <= weight.shape[1] else weight.T
    unit = weight / (xp.sqrt(xp.sum(weight * weight, -1))[:, None] + _TINY)
    count = len(unit)
    total = xp.sum(unit @ unit.T) - xp.sum(unit * unit)
    return {"router_weight_similarity": total / (count * (count - 1))}


def router_logit_features(xp: Any, logits: Array | None) -> dict[str, Array]:
    """Return the mean entropy of tokens over experts (the last dimension)."""
    if logits is None or not logits.ndim:
        return {}
    shifted = logits - xp.amax(logits, -1)[..., None]
    logarithms = shifted - xp.log(xp.sum(xp.exp(shifted), -1))[..., None]
    return {
        "per_token_expert_entropy": -xp.sum(xp.exp(logarithms) * logarithms, -1).mean(),
    }


def _norm(xp: Any, array: Array) -> Array:
    return xp.sqrt(xp.sum(array * array))
