# SPDX-License-Identifier: Apache-2.0
"""Names of Megatron parameters: one spelling for all versions, and how each is cut over ranks."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from msprobe.checkpoints.key_paths import KeyPath


class Cut(Enum):
    """How tensor parallelism divides a parameter."""

    ROWS = 0
    """Along the first dimension."""
    COLUMNS = 1
    """Along the second dimension."""
    WHOLE = None
    """Every rank holds all of it."""


_BY_ROWS: Final = re.compile(
    r"\.linear_(qkv|fc1|q_proj|q_up_proj|kv_up_proj)\.(weight|bias)\d*$"
    r"|(^|\.)(word_embeddings|output_layer)\.weight$"
)
_BY_COLUMNS: Final = re.compile(r"\.linear_(fc2|proj)\.weight\d*$")
_GATED: Final = re.compile(r"\.linear_fc1\.(weight|bias)\d*$")
_LAYER: Final = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
_LOCAL_EXPERT: Final = re.compile(r"(?<=\.local_experts\.)\d+(?=\.)")
_GROUPED_EXPERT: Final = re.compile(r"(?<=\.experts\.)(linear_fc[12]\.(?:weight|bias))(\d+)$")

# Older spelling → that of megatron.core; in this order.
_SPELLINGS: Final = (
    (re.compile(r"^(module\.)+"), ""),
    (re.compile(r"^language_model\."), ""),
    (re.compile(r"^(encoder|transformer)\.(?=layers\.|final_)"), "decoder."),
    (re.compile(r"\.final_norm\."), ".final_layernorm."),
    (re.compile(r"\.attention\."), ".self_attention."),
    (re.compile(r"\.query_key_value\."), ".linear_qkv."),
    (re.compile(r"(?<=\.self_attention)\.dense\."), ".linear_proj."),
    (re.compile(r"\.dense_h_to_4h\."), ".linear_fc1."),
    (re.compile(r"\.dense_4h_to_h\."), ".linear_fc2."),
    (re.compile(r"\.input_norm\."), ".input_layernorm."),
    (re.compile(r"\.post_attention_(norm|layernorm)\."), ".pre_mlp_layernorm."),
)

# Arguments that say how the checkpoint is laid out, which is no difference of what it holds.
_LAYOUT: Final = frozenset(
    (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
        "context_parallel_size",
        "data_parallel_size",
        "expert_tensor_parallel_size",
        "local_rank",
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "rank",
        "transformer_pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "world_size",
    )
)


def core_name(name: str) -> str:
    """Return a parameter's name as megatron.core spells it."""
    for pattern, spelling in _SPELLINGS:
        name = pattern.sub(spelling, name)
    return name


def cut_of(name: str) -> Cut:
    """Return how a parameter (by its core name) is divided over tensor-parallel ranks."""
    if _BY_ROWS.search(name):
        return Cut.ROWS
    return Cut.COLUMNS if _BY_COLUMNS.search(name) else Cut.WHOLE


def is_gated(name: str) -> bool:
    """Return whether a parameter holds gate and value halves, if the model has a gated MLP."""
    return _GATED.search(name) is not None


def layer_of(name: str) -> int | None:
    """Return the number of the layer a parameter belongs to, None if to none."""
    found = _LAYER.search(name)
    return int(found[0]) if found else None


def is_expert(name: str) -> bool:
    """Return whether a parameter is one of an expert's."""
    return _LOCAL_EXPERT.search(name) is not None or _GROUPED_EXPERT.search(name) is not None


def expert_of(name: str) -> int | None:
    """Return the number of the expert a parameter belongs to, None if to none."""
    if found := _LOCAL_EXPERT.search(name):
        return int(found[0])
    found = _GROUPED_EXPERT.search(name)
    return int(found[2]) if found else None


def renumbered(name: str, *, first_layer: int, first_expert: int) -> str:
    """Return a name with its local numbers of layer and expert counted through the model.

    Args:
        name: core name on one rank.
        first_layer: number of the rank's first layer in the model.
        first_expert: number of its first expert.
    """
    name = _LAYER.sub(lambda found: str(first_layer + int(found[0])), name, count=1)
    name = _LOCAL_EXPERT.sub(lambda found: str(first_expert + int(found[0])), name)
    return _GROUPED_EXPERT.sub(lambda found: f"{found[1]}{first_expert + int(found[2])}", name)


def is_layout(path: KeyPath) -> bool:
    """Return whether an entry is an argument that says how a checkpoint is laid out."""
    return path[:1] == ("args",) and path[-1] in _LAYOUT
