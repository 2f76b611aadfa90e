# SPDX-License-Identifier: Apache-2.0
"""Small model families of many kinds, to prove that a tool does not disturb a training.

Each entry of `FAMILIES` is ``build(seed) -> TrainCase``: a tiny model with its own training loop
(a step takes milliseconds on a CPU). `train` runs it and returns the fingerprint of the run: a
digest of the exact bytes of every loss, gradient, parameter, buffer, optimiser state and generator
state after every step. Two runs are equal when `differences` is empty. The distributed families
run in processes of their own: see `process_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import (
    attention,
    autograd_extensions,
    recurrent,
    routing,
    training_loops,
    user_types,
    vision,
)
from .training import Around, Fingerprint, TrainCase, differences, digest, train

Build = Callable[[int], TrainCase]

FAMILIES: Final[dict[str, Build]] = {
    build.__name__: build
    for build in (
        vision.conv_bn_inplace,
        vision.unet,
        attention.prenorm_transformer,
        attention.encoder_decoder,
        attention.weight_tying,
        attention.evaluation_in_the_loop,
        routing.mixture_of_experts,
        routing.sparse_embeddings,
        recurrent.recurrent,
        recurrent.state_space_scan,
        autograd_extensions.custom_functions,
        autograd_extensions.checkpointing,
        autograd_extensions.gradient_penalty,
        autograd_extensions.adversarial,
        autograd_extensions.user_hooks,
        autograd_extensions.functional_transforms,
        user_types.structured_outputs,
        user_types.custom_operators,
        user_types.tensor_subclass,
        user_types.user_modes,
        user_types.sparse_and_complex,
        user_types.nested_and_quantised,
        training_loops.accumulation_with_autocast,
        training_loops.half_precision,
        training_loops.averaged_and_parametrised,
        training_loops.random_everywhere,
        training_loops.compiled,
    )
}

REFERENCES: Final[dict[str, Build]] = FAMILIES | {"compiled": training_loops.compiled_reference}
"""What an observed run is held against: the family itself, eager where the family compiles."""

__all__ = [
    "FAMILIES",
    "REFERENCES",
    "Around",
    "Build",
    "Fingerprint",
    "TrainCase",
    "differences",
    "digest",
    "train",
]
