# SPDX-License-Identifier: Apache-2.0
"""Names under which one operation goes: ``a + b``, ``torch.add``, ``a.add_(b)``.

A family is what these names have in common. It only says which calls may be partners; which of
them are is decided by number, place and values.
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
_ALIASES: Final = """
abs absolute
acos arccos
acosh arccosh
addcmul addcmul_v2
all_gather _all_gather_base all_gather_into_tensor
all_reduce functional_all_reduce
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
ceil
clamp clip clip_by_value clamp_min clamp_max
cumsum cum_sum
det
div divide true_divide truediv realdiv
dropout native_dropout
embedding embedding_lookup
eq equal_elementwise
erfc
expand broadcast_to expand_as
fix trunc
flatten
floor_divide floordiv
gather gather_elements gather_d
ge greater_equal
getitem
gt greater
inverse
layer_norm native_layer_norm layer_norm_ext
le less_equal
linear addmm
log_softmax logsoftmax
logical_not
logsumexp
lt less
masked_fill
matmul mm bmm batch_matmul baddbmm
max maximum amax reduce_max
mean reduce_mean
min minimum amin reduce_min
mul multiply
ne not_equal
neg negative
ones ones_like new_ones
permute
pow
prod reduce_prod
reduce_scatter _reduce_scatter_base reduce_scatter_tensor
relu threshold
remainder mod
reshape view view_as reshape_as
rsqrt
scaled_dot_product_attention npu_fusion_attention flash_attention_score
setitem
sigmoid expit
silu swish
softmax
square
squeeze
stack
sub subtract
sum reduce_sum sum_ext
swapaxes swapdims
to type_as type astype cast float half bfloat16 double
transpose t
unsqueeze expand_dims
where select
zeros zeros_like new_zeros
"""

_FAMILY_OF: Final = {
    name: line.split()[0] for line in _ALIASES.strip().splitlines() for name in line.split()
}


def bare_name(api: str) -> str:
    """Return an API's name without the marks of operators and in-place calls.

    ``__iadd__``, ``__radd__`` and ``add_`` are all ``add``; ``__rsub__`` stays apart from ``sub``,
    whose arguments stand the other way round.
    """
    if api.startswith("__") and api.endswith("__") and len(api) > 4:
        name = api[2:-2]
        if name in _IN_PLACE_OPERATORS or name in _COMMUTING_REFLECTED:
            name = name[1:]
        return name
    return api.removesuffix("_") or api


_IN_PLACE_OPERATORS: Final = frozenset(
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
_COMMUTING_REFLECTED: Final = frozenset(f"r{name}" for name in ("add", "mul", "and", "or", "xor"))


def family(prefix: str, api: str) -> str:
    """Return the family of an API.

    Args:
        prefix: of the record's name: ``Functional``, ``Tensor`` …
        api: the function's name.
    """
    name = bare_name(api)
    if prefix in _SHARED_PREFIXES:
        return _FAMILY_OF.get(name, name)
    if prefix in _DISTRIBUTED:
        return f"Distributed.{_FAMILY_OF.get(name, name)}"
    if prefix == "NPU":
        return _FAMILY_OF.get(name, name.removeprefix("npu_"))
    return f"{prefix}.{name}"
