# SPDX-License-Identifier: Apache-2.0
"""`shrunk`: a smaller call with the same fault, found by delta debugging.

Parts of dimensions are left out as long as the error stays beyond the allowed one, then values are
made simpler. Dimensions of equal size are cut together: a product of matrices stays one. Where
the fault appears again when the call is run, every smaller call is run as well. Where it does not,
as with a recording of another machine, only such parts are left out that the exact result of the
rest does not depend on; the recorded result is cut with them.

Method: A. Zeller, R. Hildebrandt, Simplifying and isolating failure-inducing input, 2002.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from msprobe.dump.values import PartPath
from msprobe.pytorch.scripts.shown_call import Results, ShownCall, ratio_of
from msprobe.replay.arguments import converted
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import CannotReplayError, Setting

# Cut results that agree this well are the same: sums of other parts have other roundings.
_SAME: Final = 1e-9


def shrunk(shown: ShownCall, *, seconds: float) -> ShownCall:
    """Return the smallest call found with an error beyond the allowed one.

    Args:
        shown: a call; it is returned as it is if nothing of it is wrong.
        seconds: how long to look.
    """
    if shown.ratio() <= 1:
        return shown
    return _Search(shown, time.monotonic() + seconds).result()


class _Search:
    """Looks for smaller calls until a point in time."""

    def __init__(self, shown: ShownCall, deadline: float) -> None:
        self._best = shown
        self._deadline = deadline
        again = self._computed(shown)
        self._runs_again = again is not None and again.ratio() > 1
        if again is not None and self._runs_again:
            self._best = again

    def result(self) -> ShownCall:
        """Return the smallest call."""
        for size in sorted(_sizes(self._best), reverse=True):
            self._cut(size)
        if self._runs_again:
            self._simplify()
        return self._best

    def _computed(self, shown: ShownCall) -> ShownCall | None:
        """Return the call with results of new runs; None if it fails."""
        try:
            targets = shown.run(Setting(device=shown.device, dtype=None))
            references = shown.run()
        except CannotReplayError:
            return None
        if not set(shown.allowed) <= set(targets) & set(references):
            return None
        return replace(
            shown,
            targets={place: targets[place].cpu() for place in shown.allowed},
            references={place: references[place] for place in shown.allowed},
            is_recorded=False,
        )

    def _accept(self, candidate: ShownCall) -> bool:
        """Keep a smaller call if it has the fault."""
        if time.monotonic() > self._deadline:
            return False
        found = self._computed(candidate) if self._runs_again else _if_independent(candidate)
        if found is None or not found.ratio() > 1:
            return False
        self._best = found
        return True

    def _cut(self, size: int) -> None:
        """Leave out parts of the dimensions of a size."""
        kept = list(range(size))
        # Most faults are in every element, or in one: a single row often has them.
        if self._accept(_with_rows(self._best, size, [_worst_row(self._best, size)])):
            return
        chunk = size // 2
        while chunk and time.monotonic() < self._deadline:
            start = 0
            while start < len(kept) and len(kept) > 1:
                rest = kept[:start] + kept[start + chunk :]
                places = [kept.index(one) for one in rest]
                if rest and self._accept(_with_rows(self._best, len(kept), places)):
                    kept = rest
                else:
                    start += chunk
            chunk //= 2

    def _simplify(self) -> None:
        """Give tensors simpler values."""
        for place in list(_tensors(self._best)):
            for simpler in (torch.zeros_like, torch.ones_like, torch.round, _short):
                self._accept_tensor(place, simpler)

    def _accept_tensor(
        self, place: PartPath, simpler: Callable[[torch.Tensor], torch.Tensor]
    ) -> bool:
        tensor = _tensors(self._best)[place]
        if not tensor.is_floating_point():
            return False
        try:
            changed = simpler(tensor)
        except RuntimeError:  # not made for this type
            return False
        if torch.equal(changed, tensor):
            return True
        return self._accept(_mapped(self._best, lambda at, one: changed if at == place else one))


def _short(tensor: torch.Tensor) -> torch.Tensor:
    """Return values of two digits."""
    texts = [float(f"{one:.2g}") for one in tensor.double().reshape(-1).tolist()]
    return torch.tensor(texts, dtype=torch.float64).reshape(tensor.shape).to(tensor.dtype)


def _if_independent(candidate: ShownCall) -> ShownCall | None:
    """Return a cut call if its exact results are the cut exact results; else None."""
    try:
        references = candidate.run()
    except CannotReplayError:
        return None
    for place, expected in candidate.references.items():
        found = references.get(place)
        if found is None or found.shape != expected.shape:
            return None
        if not torch.allclose(found, expected, rtol=_SAME, atol=_SAME, equal_nan=True):
            return None
    return candidate


def _sizes(shown: ShownCall) -> set[int]:
    """Return the sizes of dimensions that can be cut."""
    return {size for one in _tensors(shown).values() for size in one.shape if size > 1}


def _tensors(shown: ShownCall) -> dict[PartPath, torch.Tensor]:
    """Return the arguments and incoming gradients by place."""
    found: dict[PartPath, torch.Tensor] = {}

    def note(value: Any, place: PartPath) -> Any:
        if isinstance(value, torch.Tensor):
            found[place] = value
        return value

    converted(list(shown.args), note, ("args",))
    converted(dict(shown.kwargs), note, ("kwargs",))
    converted(dict(shown.incoming), note, ("incoming",))
    return found


def _mapped(
    shown: ShownCall, change: Callable[[PartPath, torch.Tensor], torch.Tensor]
) -> ShownCall:
    """Return the call with other tensors; one that is passed twice stays one."""
    made: dict[int, torch.Tensor] = {}

    def changed(value: Any, place: PartPath) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = change(place, value)
        return made[id(value)]

    return replace(
        shown,
        args=tuple(converted(list(shown.args), changed, ("args",))),
        kwargs=converted(dict(shown.kwargs), changed, ("kwargs",)),
        incoming=converted(dict(shown.incoming), changed, ("incoming",)),
    )


def _worst_row(shown: ShownCall, size: int) -> int:
    """Return the index of the worst element in the first dimension of a size; 0 if none has it."""
    ratios = [
        ratio_of(allowed, shown.targets[place], shown.references[place])
        for place, allowed in shown.allowed.items()
    ]
    ratio = max(ratios, key=lambda one: float(one.max()))
    if size not in ratio.shape:
        return 0
    index = torch.unravel_index(ratio.argmax(), ratio.shape)
    return int(index[list(ratio.shape).index(size)])


def _with_rows(shown: ShownCall, size: int, rows: Sequence[int]) -> ShownCall:
    """Return the call with all dimensions of a size cut to some of their rows."""
    chosen = torch.tensor(list(rows))

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        for axis, length in enumerate(tensor.shape):
            if length == size:
                tensor = tensor.index_select(axis, chosen)
        return tensor

    def cut_all(results: Results) -> Results:
        return {place: cut(one) for place, one in results.items()}

    found = _mapped(shown, lambda _, one: cut(one))
    return replace(
        found,
        call=_with_size(shown.call, size, len(rows)),
        args=tuple(_lists(list(found.args), size, len(rows))),
        kwargs=_lists(dict(found.kwargs), size, len(rows)),
        targets=cut_all(shown.targets),
        references=cut_all(shown.references),
    )


def _lists(value: Any, size: int, length: int) -> Any:
    """Return arguments whose lists of sizes have the new one: normalized_shape, split sizes."""
    if isinstance(value, dict):
        return {key: _lists(one, size, length) for key, one in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if all(type(one) is int for one in value):
        changed = [length if one == size else one for one in value]
    else:
        changed = [_lists(one, size, length) for one in value]
    return changed if isinstance(value, list) else tuple(changed)


def _with_size(call: RecordedCall, size: int, length: int) -> RecordedCall:
    """Return the call whose recorded results have the new size."""
    return replace(call, outputs=_resized(call.outputs, size, length))


def _resized(tree: Any, size: int, length: int) -> Any:
    if isinstance(tree, list):
        return [_resized(one, size, length) for one in tree]
    if isinstance(tree, Mapping):
        changed = {key: _resized(one, size, length) for key, one in tree.items()}
        if isinstance(tree.get("shape"), list):
            changed["shape"] = [length if one == size else one for one in tree["shape"]]
        return changed
    return tree
