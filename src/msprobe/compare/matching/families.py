# SPDX-License-Identifier: Apache-2.0
"""Names under which one operation goes: ``a + b``, ``torch.add``, ``a.add_(b)``.

A family is what these names have in common. It only says which calls may be partners; which of
them are is decided by number, place and values. Relatives do nearly the same; they are looked at
when nothing better is left.
"""

from __future__ import annotations

from typing import Final

# Prefixes of functions that are the same operation under the same name.
_SHARED_PREFIXES: Final = frozenset(
    (
        "Aten",
        "Functional",
        "Jit",
        "Mint",
        "MintFunctional",
        "Primitive",
        "Tensor",
        "Torch",
        "VF",
    )
)
_DISTRIBUTED: Final = frozenset(("Distributed", "MintDistributed"))

# Each line: names of one operation; the first one is the family.
_SYNONYMS: Final = """
abs absolute
acos arccos
acosh arccosh
all_gather_into_tensor _all_gather_base
asin arcsin
asinh arcsinh
atan arctan
atan2 arctan2
atanh arctanh
bitwise_and and
bitwise_left_shift lshift
bitwise_not invert
bitwise_or or
bitwise_right_shift rshift
bitwise_xor xor
cat concat concatenate
clamp clip
div divide true_divide truediv
fix trunc
floor_divide floordiv
ge greater_equal
gt greater
inv inverse
layer_norm native_layer_norm
le less_equal
linalg_det det
lt less
movedim moveaxis
mul multiply
ne not_equal
neg negative
outer ger
reduce_scatter_tensor _reduce_scatter_base
remainder mod
sigmoid expit
sub subtract
transpose swapaxes swapdims
vstack row_stack
"""

# Each line: operations that another version or device may have taken instead of one another.
_RELATIVES: Final = """
addmm linear
amax max maximum
amin min minimum
baddbmm bmm matmul mm einsum mv
batch_norm native_batch_norm sync_batch_norm
clamp clamp_max clamp_min
contiguous clone
dropout native_dropout alpha_dropout feature_dropout
empty empty_like new_empty
expand expand_as broadcast_to repeat
full full_like new_full
gelu fast_gelu
index_select gather take embedding
layer_norm rms_norm fused_layer_norm
masked_fill where
ones ones_like new_ones
permute transpose t
reshape view view_as reshape_as flatten unflatten squeeze unsqueeze
scaled_dot_product_attention fusion_attention flash_attention_score prompt_flash_attention
silu swish swiglu
split chunk tensor_split unbind split_with_sizes
to type type_as float half bfloat16 double long int cpu cuda npu
all_gather all_gather_into_tensor
all_to_all all_to_all_single
reduce_scatter reduce_scatter_tensor
zeros zeros_like new_zeros
"""


def _by_name(lines: str) -> dict[str, str]:
    return {name: line.split()[0] for line in lines.strip().splitlines() for name in line.split()}


_FAMILY_OF: Final = _by_name(_SYNONYMS)
_RELATED_TO: Final = _by_name(_RELATIVES)

_IN_PLACE_OPERATORS: Final = frozenset(
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
# a + b and b + a; for the others the order of the arguments matters.
_COMMUTING_REFLECTED: Final = frozenset(f"r{name}" for name in ("add", "mul", "and", "or", "xor"))


def bare_name(api: str) -> str:
    """Return an API's name without the marks of operators and in-place calls.

    ``__iadd__``, ``__radd__`` and ``add_`` are all ``add``; ``__rsub__`` stays apart from ``sub``,
    whose arguments stand the other way round.
    """
    if api.startswith("__") and api.endswith("__") and len(api) > 4:
        name = api[2:-2]
        return name[1:] if name in _IN_PLACE_OPERATORS or name in _COMMUTING_REFLECTED else name
    return api.removesuffix("_") or api


def family(prefix: str, api: str) -> str:
    """Return the family of an API.

    Args:
        prefix: of the record's name: ``Functional``, ``Tensor`` …
        api: the function's name.
    """
    name = bare_name(api)
    if prefix in _SHARED_PREFIXES:
        return _FAMILY_OF.get(name, name)
    if prefix == "NPU":
        name = name.removeprefix("npu_")
        return _FAMILY_OF.get(name, name)
    if prefix in _DISTRIBUTED:
        name = name.removeprefix("functional_")
        return f"Distributed.{_FAMILY_OF.get(name, name)}"
    return f"{prefix}.{name}"


def relatives(family_name: str) -> str:
    """Return what stands for a family and its relatives."""
    prefix, dot, name = family_name.rpartition(".")
    return f"{prefix}{dot}{_RELATED_TO.get(name, name)} and relatives"
