# SPDX-License-Identifier: Apache-2.0
"""Note whether a call drew random numbers, and from which state; draw the same ones again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Generator, Tensor

from msprobe.capture.call import Call
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.dump.writer import RankDump
from msprobe.pytorch.values.tensor_payload import TensorFile

_cuda_is_up: Final[Callable[[], bool]] = torch.cuda.is_initialized


class RandomWatch:
    """The state of the generators that a call may use, taken before it runs.

    Reading a state costs a copy of 5 kB on the CPU; on CUDA only the offset is read, which lives on
    the host. It is done only for APIs that may be random.
    """

    __slots__ = ("_before", "_drawn", "_generators", "_keeps_state")

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, keeps_state: bool
    ) -> None:
        """Read the states.

        Args:
            args: the call's arguments; their devices say which default generators matter.
            kwargs: its keyword arguments; a ``generator`` among them is the one that is used.
            keeps_state: whether the whole state is kept for a replay (``record_rng``).
        """
        self._keeps_state = keeps_state
        self._drawn: dict[str, JsonTree] | None = None
        self._generators = generators_of(args, kwargs)
        self._before = [self._state(generator) for generator in self._generators]

    def _state(self, generator: Generator) -> Tensor | int:
        if not self._keeps_state and generator.device.type == "cuda":
            return generator.get_offset()
        return generator.get_state()

    def changed(self) -> Iterator[tuple[Generator, Tensor | int]]:
        """Yield the generators from which numbers were drawn, with their states before."""
        for generator, before in zip(self._generators, self._before, strict=True):
            if not _equal(before, self._state(generator)):
                yield generator, before

    def drawn(self, call: Call, dump: RankDump | None) -> dict[str, JsonTree] | None:
        """Return the devices on which a call drew random numbers; `dump` gets states to keep.

        The first answer is the answer: a call that C could not end asks again in Python.
        """
        if self._drawn is None:
            self._drawn = {}
            for generator, before in self.changed():
                device = str(generator.device)
                self._drawn[device] = None
                if self._keeps_state and isinstance(before, Tensor) and dump is not None:
                    self._drawn[device] = _save(before, call, device, dump)
        return self._drawn or None


class RandomReplay:
    """The random state before a call: running the call again then draws the same numbers."""

    __slots__ = ("_before", "_generators")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Read the states of the generators that a call with these arguments may use."""
        self._generators = generators_of(args, kwargs)
        self._before = [generator.get_state() for generator in self._generators]

    @property
    def has_moved(self) -> bool:
        """Whether numbers were drawn since then."""
        now = [generator.get_state() for generator in self._generators]
        return not all(map(torch.equal, self._before, now))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Go back to these states; the present ones return at the end."""
        now = [generator.get_state() for generator in self._generators]
        self._set(self._before)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, states: Sequence[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _save(state: Tensor, call: Call, device: str, dump: RankDump) -> TensorRecord:
    record = TensorRecord("torch.Tensor", str(state.dtype), tuple(state.shape))
    wanted = f"{call.forward_name}.rng.{device.replace(':', '_')}.pt"
    record.data_name = dump.tensor_file_name(wanted)
    dump.put_tensor(record.data_name, TensorFile(state))
    return record


def generators_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Generator]:
    """Return the generators that a call with these arguments may use."""
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Generator)]
    if given:
        return given
    found = [torch.default_generator]
    devices = {v.device for v in (*args, *kwargs.values()) if isinstance(v, Tensor)}
    with contextlib.suppress(RuntimeError, TypeError):  # the user's call will raise the error
        # `torch.rand(3, device="cuda")` has no tensor to go by
        devices.add(torch.device(kwargs.get("device", "cpu")))
    if _cuda_is_up():
        indices = {_cuda_index(device) for device in devices if device.type == "cuda"}
        found += [torch.cuda.default_generators[index] for index in sorted(indices)]
    return found


def _cuda_index(device: torch.device) -> int:
    return device.index if device.index is not None else torch.cuda.current_device()


def _equal(before: Tensor | int, after: Tensor | int) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return torch.equal(before, after)
    return bool(before == after)
