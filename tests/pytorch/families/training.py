# SPDX-License-Identifier: Apache-2.0
"""What a family is, and the exact fingerprint of a training run."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

Fingerprint = dict[str, str]
"""Name of a value of the run (``step2/grad/fc.weight``) -> digest of its exact bytes."""

Step = Callable[[int], Tensor]


def seed_everything(seed: int) -> None:
    """Put the three generators that a family may use in a known state."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  users' scripts draw from the global generator
    random.seed(seed)


@contextmanager
def without_warnings(*messages: str) -> Iterator[None]:
    """Silence torch's own remarks whose text matches one of `messages`; all others stay errors."""
    with warnings.catch_warnings():
        for message in messages:
            warnings.filterwarnings("ignore", message=message)
        yield


@dataclass(eq=False)
class TrainCase:
    """A tiny model together with its own way of training.

    Attributes:
        model: what a user passes to ``start()``; a list when the script trains several models.
        run_step: one whole training step (forward, backward, optimiser); returns the loss.
        optimizers: every optimiser the step uses.
        extra: other values that the step produced and that must not change either. The step fills
            it, `snapshot` digests and empties it.
    """

    model: nn.Module | list[nn.Module]
    run_step: Step
    optimizers: list[torch.optim.Optimizer]
    extra: dict[str, object] = field(default_factory=dict)
    _history: Fingerprint = field(default_factory=dict)
    _snapshots: int = 0

    @property
    def modules(self) -> list[nn.Module]:
        """The model as a list."""
        return self.model if isinstance(self.model, list) else [self.model]

    def snapshot(self, loss: Tensor) -> None:
        """Add everything that the step just done left behind to the fingerprint."""
        prefix = f"step{self._snapshots}"
        self._snapshots += 1
        for name, value in self._values(loss):
            self._history[f"{prefix}/{name}"] = digest(value)
        self.extra.clear()

    def _values(self, loss: Tensor) -> Iterator[tuple[str, object]]:
        yield "loss", loss
        for index, model in enumerate(self.modules):
            for name, parameter in model.named_parameters():
                yield f"parameter/{index}.{name}", parameter
                yield f"grad/{index}.{name}", parameter.grad
            for name, buffer in model.named_buffers():
                yield f"buffer/{index}.{name}", buffer
        for index, optimizer in enumerate(self.optimizers):
            yield f"optimizer/{index}", optimizer.state_dict()
        for name, value in self.extra.items():
            yield f"extra/{name}", value
        yield "rng/torch", torch.get_rng_state()
        yield "rng/numpy", np.random.get_state()  # noqa: NPY002
        yield "rng/python", random.getstate()

    def state(self) -> Fingerprint:
        """Fingerprint of all steps so far."""
        return dict(self._history)


def digest(value: object) -> str:
    """Digest of the exact bytes of `value` (tensors, arrays, numbers and nests of these)."""
    digester = hashlib.blake2b(digest_size=12)
    _feed(digester.update, value)
    return digester.hexdigest()


def _feed(update: Callable[[bytes], None], value: object) -> None:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            _feed_tensor(update, value)
    elif isinstance(value, np.ndarray):
        update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, float):
        update(value.hex().encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            update(f"{key!r}:".encode())
            _feed(update, item)
    elif isinstance(value, list | tuple):
        update(f"[{len(value)}".encode())
        for item in value:
            _feed(update, item)
    else:
        update(repr(value).encode())


def _feed_tensor(update: Callable[[bytes], None], tensor: Tensor) -> None:
    update(f"{tensor.dtype}{tensor.layout}{tensor.requires_grad}".encode())
    if type(tensor).__name__ == "DTensor":  # what this rank holds of it
        tensor = tensor._local_tensor
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        parts = [tensor.indices(), tensor.values()]
    elif tensor.is_nested:
        parts = list(tensor.unbind())
    elif tensor.is_quantized:
        parts = [tensor.int_repr()]
    else:
        parts = [tensor]
    for part in parts:
        update(f"{tuple(part.shape)}".encode())
        update(part.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())


Around = Callable[[TrainCase, int], AbstractContextManager[object]]


def _alone(_case: TrainCase, _step: int) -> AbstractContextManager[object]:
    return nullcontext()


def train(case: TrainCase, steps: int = 5, around: Around = _alone) -> Fingerprint:
    """Run `steps` training steps, each inside `around(case, step)`, and return the fingerprint.

    The fingerprint is taken outside of `around`, so that reading it is no part of what is tested.
    """
    for step in range(steps):
        with around(case, step):
            loss = case.run_step(step)
        case.snapshot(loss)
    return case.state()


def differences(expected: Fingerprint, found: Fingerprint) -> list[str]:
    """Names of the values whose digests differ or that only one run has; empty when equal."""
    names = list(dict.fromkeys([*expected, *found]))
    return [name for name in names if expected.get(name) != found.get(name)]


def simple_case(
    model: nn.Module,
    loss_of: Step,
    optimizer: torch.optim.Optimizer,
) -> TrainCase:
    """The usual loop: clear gradients, forward, backward, optimiser step."""

    def run_step(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        return loss

    return TrainCase(model, run_step, [optimizer])
