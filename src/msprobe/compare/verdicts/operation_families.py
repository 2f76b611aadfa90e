# SPDX-License-Identifier: Apache-2.0
"""What kind of function an operation computes, as far as errors that pass through it care."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final


class Family(StrEnum):
    """How errors of the inputs become errors of the output."""

    BILINEAR = "bilinear"
    ADDITIVE = "additive"
    PRODUCT = "product"
    LIPSCHITZ = "lipschitz"
    KINKED = "kinked"
    EXPONENTIAL = "exponential"
    NORMALISING = "normalising"
    MOVING = "moving"
    DISCRETE = "discrete"
    COMPOSITE = "composite"
    OTHER = "other"


_WORDS: Final = {
    # Sums of products.
    Family.BILINEAR: """
        linear matmul mm bmm addmm addbmm baddbmm mv addmv addr dot vdot inner outer ger tensordot
        bilinear einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
        conv_tbc convolution kron chain_matmul multi_dot vecdot dense conv conv2dtranspose
        batchmatmul lazylinear embedding_bag cosine_similarity""",
    # Sums and averages of inputs.
    Family.ADDITIVE: """
        add sub rsub subtract iadd isub radd sum mean nansum nanmean cumsum average avg_pool1d
        avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avgpool1d
        avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d interpolate
        upsample diff trace lerp addcmul addcdiv index_add scatter_add scatter_reduce all_reduce
        reduce reduce_scatter reduce_scatter_tensor foreach_add foreach_sub unfold fold fft ifft
        rfft irfft fft2 ifft2 stft istft""",
    Family.PRODUCT: """
        mul multiply imul rmul div true_divide truediv itruediv rtruediv divide neg square pow
        pow_ rpow reciprocal sqrt rsqrt scale foreach_mul foreach_div glu""",
    # Smooth, with a bounded slope.
    Family.LIPSCHITZ: """
        gelu silu sigmoid tanh softplus mish elu celu selu logsigmoid hardswish sin cos atan
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout tanhshrink
        softsign erf swish quickgelu newgelu swiglu asinh""",
    # Continuous, with jumps in the slope: their gradients jump where a value passes a kink.
    Family.KINKED: """
        relu relu6 leaky_relu leakyrelu prelu rrelu hardtanh hardsigmoid abs clamp clamp_min
        clamp_max clip threshold maximum minimum max min amax amin fmax fmin max_pool1d max_pool2d
        max_pool3d maxpool1d maxpool2d maxpool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d l1_loss smooth_l1_loss huber_loss l1loss smoothl1loss huberloss
        hinge_embedding_loss margin_ranking_loss triplet_margin_loss hardshrink softshrink
        clip_grad_norm_ clip_grad_value_""",
    # Sensitive to absolute, not relative errors of their inputs.
    Family.EXPONENTIAL: """
        exp exp2 expm1 softmax log_softmax softmin gumbel_softmax logsumexp logaddexp cross_entropy
        nll_loss log log2 log10 log1p sinh cosh tan scaled_dot_product_attention
        multi_head_attention_forward multiheadattention binary_cross_entropy ctc_loss
        binary_cross_entropy_with_logits crossentropyloss nllloss bceloss bcewithlogitsloss kl_div
        kldivloss poisson_nll_loss gaussian_nll_loss cosine_embedding_loss""",
    # They subtract an average or divide by a spread.
    Family.NORMALISING: """
        layer_norm layernorm rms_norm rmsnorm batch_norm batchnorm batchnorm1d batchnorm2d
        batchnorm3d syncbatchnorm group_norm groupnorm instance_norm instancenorm1d instancenorm2d
        instancenorm3d normalize local_response_norm var std var_mean std_mean weight_norm
        spectral_norm native_layer_norm native_batch_norm norm vector_norm matrix_norm renorm
        standardize cov corrcoef prod cumprod det logdet inverse inv solve cholesky qr svd eigh
        lstsq pinv mse_loss mseloss dist cdist pairwise_distance""",
    # The same numbers at other places.
    Family.MOVING: """
        view reshape view_as reshape_as expand expand_as transpose permute t mt h mh swapaxes
        swapdims movedim moveaxis squeeze unsqueeze flatten unflatten ravel contiguous clone detach
        detach_ alias to type type_as float half bfloat16 double cpu cuda npu getitem setitem
        select narrow slice split chunk unbind tensor_split hsplit vsplit cat concat concatenate
        stack hstack vstack dstack column_stack gather index_select take take_along_dim index
        masked_select masked_fill where fill zero repeat repeat_interleave tile roll flip fliplr
        flipud rot90 pad constant_pad_nd pixel_shuffle pixel_unshuffle channel_shuffle tril triu
        diag diagonal diag_embed block_diag copy scatter index_copy index_put index_fill
        masked_scatter
        embedding as_strided identity flattenlayer item tolist data real imag view_as_real
        view_as_complex numpy requires_grad broadcast_to broadcast_tensors meshgrid atleast_1d
        atleast_2d all_gather all_gather_into_tensor broadcast send recv isend irecv all_to_all
        all_to_all_single gather_list zeros_like ones_like full_like empty_like new_zeros new_ones
        new_full new_empty set_data""",
    # A small change may choose another result.
    Family.DISCRETE: """
        argmax argmin argsort sort topk kthvalue median mode msort searchsorted bucketize histc
        histogram unique unique_consecutive nonzero gt lt ge le eq ne greater less greater_equal
        less_equal not_equal isclose allclose logical_and logical_or logical_not logical_xor round
        floor ceil trunc frac fix floor_divide floordiv remainder mod fmod sign signbit sgn
        heaviside int long short char byte bool multinomial bernoulli
        fake_quantize_per_tensor_affine
        fake_quantize_per_channel_affine quantize_per_tensor quantize_per_channel isnan isinf
        isfinite count_nonzero any all bincount one_hot rand_like cummax cummin aminmax
        fractional_max_pool2d fractional_max_pool3d equal result_type""",
    # Whole networks in one call.
    Family.COMPOSITE: """
        lstm gru rnn_tanh rnn_relu rnn lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell lstmcell
        grucell rnncell transformer transformerencoder transformerencoderlayer transformerdecoder
        transformerdecoderlayer""",
}

_BY_WORD: Final = {word: family for family, words in _WORDS.items() for word in words.split()}


@cache
def family_of(name: str) -> Family:
    """Return the family of an API or of a module's class; `OTHER` for unknown ones.

    Args:
        name: ``linear``, ``__matmul__``, ``add_``, ``_foreach_mul_``, ``LayerNorm`` …
    """
    plain = name.lower().strip("_")
    for word in (plain, plain[1:] if plain[:1] in "ri" else plain):
        if word in _BY_WORD:
            return _BY_WORD[word]
    return Family.OTHER


_REORDERING_WORDS: Final = """
    roll flip fliplr flipud rot90 transpose t mt permute swapaxes swapdims movedim moveaxis
    index_select getitem gather take take_along_dim index_copy scatter sort view reshape
    unflatten channel_shuffle pixel_shuffle pixel_unshuffle"""
_REORDERING: Final = frozenset(_REORDERING_WORDS.split())


def reorders(name: str) -> bool:
    """Return whether an API can hand on the same elements in another order."""
    return name.lower().strip("_") in _REORDERING


_SLOTS_OF_STATE: Final = {
    "linear": (1, 2),
    "embedding": (1,),
    "embedding_bag": (1,),
    "prelu": (1,),
    "bilinear": (2, 3),
    "batch_norm": (1, 2, 3, 4),
    "instance_norm": (1, 2, 3, 4),
    "layer_norm": (2, 3),
    "rms_norm": (2,),
    "group_norm": (2, 3),
    **{f"conv{kind}{n}d": (1, 2) for kind in ("", "_transpose") for n in (1, 2, 3)},
}
_NAMES_OF_STATE: Final = ("weight", "bias", "running_mean", "running_var", "in_proj_weight")


@cache
def takes_state(api: str, slot: str) -> bool:
    """Return whether an argument of a well-known API is a model's parameter or buffer."""
    head, _, key = slot.partition(".")
    if head not in ("input", "kwargs"):
        return False
    if key in _NAMES_OF_STATE:
        return api in _SLOTS_OF_STATE
    return key.isdigit() and int(key) in _SLOTS_OF_STATE.get(api, ())
