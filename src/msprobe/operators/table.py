# SPDX-License-Identifier: Apache-2.0
"""The facts about operators.

Each word of an entry is one operator with its names: ``clamp=clip:clip_by_value`` has the alias
``clip``, and MindSpore calls it ``clip_by_value``; ``Tensor.fill`` names the method alone. A space
before ``=`` or ``:`` does not count, nor do capitals and underscores: ``layer_norm`` is also the
class ``LayerNorm``, and ``zero`` is ``zero_``. The facts of an entry hold for all its operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msprobe.operators.operator import (
    Argument,
    Communication,
    Family,
    Flow,
    Hint,
    Importance,
    InPlace,
    Linear,
    Unordered,
)


class Entry(NamedTuple):
    """Operators with the same facts.

    Attributes:
        words: their names.
        facts: values of attributes of `Operator`.
    """

    words: str
    facts: dict[str, Any]


def _ops(
    words: str, family: Family, importance: Importance = Importance.NORMAL, **facts: Any
) -> Entry:
    arguments = tuple(str(facts.pop("arguments", "")).split())
    facts |= {"family": family, "importance": importance, "arguments": arguments}
    return Entry(words, facts)


def _sent(
    words: str,
    flow: Flow,
    family: Family = Family.MOVING,
    kin: str = "",
    arguments: str = "",
    **facts: Any,
) -> Entry:
    """Return communications."""
    return _ops(
        words,
        family,
        Importance.CORE,
        kin=f"Distributed.{kin}" if kin else "",
        arguments=arguments,
        communication=Communication(flow=flow, **facts),
    )


_CORE: Final = Importance.CORE
_LOW: Final = Importance.LOW
_LAYER: Final = "input weight bias"
_WINDOW: Final = f"{_LAYER} stride padding dilation groups"
_NORM: Final = "input running_mean running_var weight bias training momentum eps"
_DST: Final = Argument(1, "dst")
_SRC: Final = Argument(1, "src")
_TENSOR: Final = Argument(0, "tensor")
_OUTPUT: Final = Argument(0, "output")

TABLE: Final = (
    # Sums of products
    _ops("linear=lazy_linear:dense", Family.BILINEAR, _CORE, kin="linear", arguments=_LAYER),
    _ops("addmm", Family.BILINEAR, _CORE, kin="linear"),
    _ops("matmul", Family.BILINEAR, _CORE, kin="matmul", may_vary=True),
    _ops("bmm:batch_mat_mul:batch_dot mm mv", Family.BILINEAR, _CORE, kin="matmul"),
    _ops("baddbmm einsum rmatmul", Family.BILINEAR, _CORE, kin="matmul"),
    _ops("bilinear:bidense", Family.BILINEAR, _CORE, arguments="input1 input2 weight bias"),
    _ops("embedding_bag", Family.BILINEAR, _CORE, arguments="input weight"),
    _ops(
        """addbmm addmv addr dot vdot inner outer=ger tensordot multi_dot chain_matmul int_mm
        grouped_mm=grouped_matmul scaled_mm scaled_mm_v2 scaled_grouped_mm
        weight_quant_batch_matmul mm_reduce_scatter_base:matmul_reduce_scatter
        all_gather_base_mm:all_gather_matmul""",
        Family.BILINEAR,
        _CORE,
    ),
    _ops("kron vecdot cosine_similarity", Family.BILINEAR),
    _ops("conv1d", Family.CONVOLUTION, _CORE, arguments=_LAYER),
    _ops("conv2d conv3d", Family.CONVOLUTION, _CORE, arguments=_WINDOW, may_vary=True),
    _ops("conv_transpose1d", Family.CONVOLUTION, _CORE, arguments=_LAYER),
    _ops("conv_transpose2d:conv2d_transpose", Family.CONVOLUTION, _CORE, arguments=_LAYER),
    _ops("conv_transpose3d:conv3d_transpose", Family.CONVOLUTION, _CORE, arguments=_LAYER),
    _ops("convolution conv_tbc", Family.CONVOLUTION, _CORE),
    _ops("conv deform_conv2d:deformable_conv2d", Family.CONVOLUTION),
    # Sums and averages of inputs
    _ops(
        """add:addn:tensor_add:assign_add:inplace_add:bias_add
        sub=subtract:assign_sub:inplace_sub rsub sum:reduce_sum nansum cumsum diff trace lerp
        addcmul foreach_add foreach_sub index_add:inplace_index_add
        scatter_add:unsorted_segment_sum scatter_reduce
        interpolate=upsample
            :resize_bilinear:resize_bicubic:resize_linear1d:resize_nearest_neighbor
        fold:col2im:batch_to_space_nd fft ifft rfft irfft fft2 ifft2 rfft2 stft istft""",
        Family.ADDITIVE,
    ),
    _ops("addcdiv foreach_addcdiv", Family.ADDITIVE, divisor=2),
    _ops("unfold:im2col", Family.ADDITIVE, _LOW),
    _ops(
        """mean=average:reduce_mean nanmean avg_pool1d avg_pool2d:avg_pool avg_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d""",
        Family.AVERAGING,
    ),
    # Products, quotients, powers
    _ops("mul=multiply foreach_mul", Family.MULTIPLYING),
    _ops(
        """rtruediv neg=negative square pow rpow reciprocal:inv sqrt rsqrt scale glu""",
        Family.PRODUCT,
    ),
    _ops(
        "div=divide=true_divide=truediv:real_div:truncate_div:xdivy foreach_div",
        Family.PRODUCT,
        divisor=1,
    ),
    # Smooth, with a bounded slope
    _ops("gelu:fast_gelu fast_gelu", Family.LIPSCHITZ, kin="gelu"),
    _ops("silu swish swiglu", Family.LIPSCHITZ, kin="silu"),
    _ops(
        """sigmoid=expit tanh softplus mish elu celu selu log_sigmoid hardswish:hswish sin cos
        atan=arctan asinh=arcsinh tanhshrink softsign erf quick_gelu new_gelu""",
        Family.LIPSCHITZ,
    ),
    _ops(
        "dropout native_dropout alpha_dropout feature_dropout",
        Family.LIPSCHITZ,
        kin="dropout",
        draws_random=True,
    ),
    _ops(
        "dropout1d dropout2d dropout3d feature_alpha_dropout fused_dropout",
        Family.LIPSCHITZ,
        draws_random=True,
    ),
    # Continuous, with jumps in the slope: their gradients jump where a value passes a kink
    _ops(
        "clamp=clip:clip_by_value:clamp_tensor:clamp_scalar clamp_max clamp_min",
        Family.KINKED,
        _LOW,
        kin="clamp",
        selects=True,
    ),
    _ops("amax:reduce_max max:argmax_with_value maximum", Family.KINKED, kin="amax", selects=True),
    _ops("amin:reduce_min min:argmin_with_value minimum", Family.KINKED, kin="amin", selects=True),
    _ops("prelu", Family.KINKED, arguments="input weight"),
    _ops("rrelu", Family.KINKED, draws_random=True),
    _ops(
        """relu relu6 hardtanh abs=absolute threshold fmax fmin hardshrink max_pool1d
        max_pool2d:max_pool max_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices""",
        Family.KINKED,
        selects=True,
    ),
    _ops(
        """leaky_relu hardsigmoid:hsigmoid softshrink l1_loss smooth_l1_loss huber_loss
        hinge_embedding_loss margin_ranking_loss triplet_margin_loss
        clip_grad_norm:clip_by_global_norm:clip_by_norm clip_grad_value""",
        Family.KINKED,
    ),
    # Sensitive to absolute, not relative errors of their inputs
    _ops("exp exp2 expm1 softmax softmin sinh cosh tan", Family.EXPONENTIAL),
    _ops("gumbel_softmax", Family.EXPONENTIAL, draws_random=True),
    _ops("nll_loss", Family.LOGARITHMIC, may_vary=True),
    _ops(
        """log log2 log10 log1p log_softmax logsumexp logaddexp ctc_loss poisson_nll_loss
        gaussian_nll_loss cosine_embedding_loss kl_div=kl_div_loss binary_cross_entropy=bce_loss
        binary_cross_entropy_with_logits=bce_with_logits_loss:sigmoid_cross_entropy_with_logits
        linear_cross_entropy cross_entropy=cross_entropy_loss
            :softmax_cross_entropy_with_logits:sparse_softmax_cross_entropy_with_logits""",
        Family.LOGARITHMIC,
    ),
    _ops(
        """scaled_dot_product_attention scaled_dot_product_attention_math
        scaled_dot_product_attention_math_for_mps scaled_dot_product_flash_attention
        scaled_dot_product_flash_attention_for_cpu scaled_dot_product_efficient_attention
        scaled_dot_product_cudnn_attention scaled_dot_product_fused_attention_overrideable""",
        Family.ATTENTION,
        _CORE,
        kin="attention",
        draws_random=True,
    ),
    _ops(
        "fusion_attention=flash_attention_score:speed_fusion_attention",
        Family.ATTENTION,
        _CORE,
        kin="attention",
        generator_outputs=(4, 5),
    ),
    _ops("prompt_flash_attention", Family.ATTENTION, _CORE, kin="attention"),
    _ops(
        "multi_head_attention_forward=multihead_attention",
        Family.ATTENTION,
        _CORE,
        draws_random=True,
    ),
    _ops(
        """flex_attention native_multi_head_attention incre_flash_attention paged_attention
        fused_infer_attention_score sparse_flash_attention ring_attention_update
        nsa_compress_attention nsa_select_attention""",
        Family.ATTENTION,
        _CORE,
    ),
    _ops(
        """flash_attention_forward flash_attention_forward_no_dropout_inplace
        efficient_attention_forward cudnn_attention_forward triton_scaled_dot_attention""",
        Family.ATTENTION,
        draws_random=True,
    ),
    # They subtract an average or divide by a spread
    _ops(
        "layer_norm=native_layer_norm",
        Family.NORMALISING,
        _CORE,
        kin="layer_norm",
        arguments="input normalized_shape weight bias eps",
        may_vary=True,
    ),
    _ops(
        "rms_norm",
        Family.NORMALISING,
        _CORE,
        kin="layer_norm",
        arguments="input normalized_shape weight",
    ),
    _ops("fused_layer_norm", Family.NORMALISING, kin="layer_norm"),
    _ops(
        "batch_norm=batch_norm1d=batch_norm2d=batch_norm3d",
        Family.NORMALISING,
        _CORE,
        kin="batch_norm",
        arguments=_NORM,
        state_arguments=("momentum",),
        # Mean and variance of the batch are outputs 3 and 4.
        unwritten_outputs=(1, 2),
    ),
    _ops("native_batch_norm", Family.NORMALISING, _CORE, kin="batch_norm"),
    _ops("sync_batch_norm", Family.NORMALISING, kin="batch_norm"),
    _ops(
        "instance_norm=instance_norm1d=instance_norm2d=instance_norm3d",
        Family.NORMALISING,
        _CORE,
        arguments=_NORM,
        state_arguments=("momentum",),
    ),
    _ops("group_norm", Family.NORMALISING, _CORE, arguments="input num_groups weight bias"),
    _ops(
        """native_group_norm local_response_norm:lrn add_layer_norm add_rms_norm batch_norm_elemt
        batch_norm_stats batch_norm_gather_stats_with_counts""",
        Family.NORMALISING,
        _CORE,
    ),
    _ops(
        """normalize:l2_normalize var std var_mean std_mean:reduce_std weight_norm spectral_norm
        norm=linalg_norm vector_norm=linalg_vector_norm matrix_norm renorm standardize cov corrcoef
        prod:reduce_prod cumprod det=linalg_det:matrix_determinant logdet
        inverse=inv=linalg_inv:matrix_inverse solve cholesky=linalg_cholesky qr=linalg_qr
        svd=linalg_svd eigh eig lstsq pinverse=pinv=linalg_pinv dist cdist pairwise_distance""",
        Family.NORMALISING,
    ),
    _ops("mse_loss:l2_loss", Family.NORMALISING, arguments="input target"),
    # The same numbers at other places
    _ops("reshape view unflatten", Family.MOVING, _LOW, kin="reshape", reorders=True),
    _ops(
        "view_as reshape_as flatten=flatten_layer squeeze unsqueeze:expand_dims",
        Family.MOVING,
        _LOW,
        kin="reshape",
    ),
    _ops(
        "permute:transpose transpose=swapaxes=swapdims t",
        Family.MOVING,
        _LOW,
        kin="permute",
        reorders=True,
    ),
    _ops(
        """movedim=moveaxis roll flip:reverse fliplr flipud rot90
        getitem:slice:strided_slice:gather_nd""",
        Family.MOVING,
        _LOW,
        reorders=True,
    ),
    _ops("expand=broadcast_to expand_as repeat", Family.MOVING, _LOW, kin="expand"),
    _ops("contiguous clone:identity:deepcopy:Tensor.copy", Family.MOVING, _LOW, kin="contiguous"),
    _ops(
        "to:cast:scalar_cast:astype type type_as float half bfloat16 double cpu cuda",
        Family.MOVING,
        _LOW,
        kin="to",
    ),
    _ops("npu", Family.MOVING, kin="to"),
    _ops("int long", Family.DISCRETE, _LOW, kin="to"),
    _ops(
        """split:split_v:split_tensor chunk:Primitive.Split tensor_split unbind:unstack
        split_with_sizes:split_with_size""",
        Family.MOVING,
        _LOW,
        kin="split",
    ),
    _ops(
        "index_select:gather",
        Family.MOVING,
        kin="index_select",
        arguments="input dim index",
        reorders=True,
    ),
    _ops("take gather:gather_d:gather_elements", Family.MOVING, kin="index_select", reorders=True),
    _ops(
        "embedding:embedding_lookup",
        Family.MOVING,
        _CORE,
        arguments="input weight",
    ),
    _ops(
        "scatter:tensor_scatter_elements",
        Family.MOVING,
        arguments="input dim index src",
        reorders=True,
    ),
    _ops(
        """mt take_along_dim index_copy:inplace_update channel_shuffle pixel_shuffle
        pixel_unshuffle""",
        Family.MOVING,
        reorders=True,
    ),
    _ops("masked_fill where:select", Family.MOVING, kin="masked_fill"),
    _ops(
        "copy:assign zero fill:Tensor.fill:Tensor.fills",
        Family.MOVING,
        _LOW,
        in_place=InPlace.OVERWRITES,
    ),
    _ops("foreach_copy foreach_zero constant", Family.MOVING, in_place=InPlace.OVERWRITES),
    _ops("setitem", Family.MOVING, in_place=InPlace.ASSIGNS),
    _ops("zeros zeros_like new_zeros", Family.MOVING, _LOW, kin="zeros", reads_shape_only=True),
    _ops("ones ones_like new_ones", Family.MOVING, _LOW, kin="ones", reads_shape_only=True),
    _ops(
        "full:fill:fill_scalar:fill_tensor",
        Family.MOVING,
        _LOW,
        kin="full",
        arguments="size fill_value",
    ),
    _ops("full_like:fills new_full", Family.MOVING, _LOW, kin="full", reads_shape_only=True),
    _ops(
        "empty empty_like new_empty",
        Family.MOVING,
        _LOW,
        kin="empty",
        allocates=True,
        reads_shape_only=True,
    ),
    _ops(
        """empty_permuted empty_strided empty_with_format empty_with_swapped_memory empty_quantized
        empty_affine_quantized empty_per_channel_affine_quantized new_empty_strided""",
        Family.MOVING,
        allocates=True,
        reads_shape_only=True,
    ),
    _ops("resize resize_as resize_as_sparse", Family.MOVING, in_place=InPlace.EXTENDS),
    _ops(
        """ravel narrow select slice hsplit vsplit dsplit cat=concat=concatenate stack hstack
        vstack=row_stack dstack column_stack
        repeat_interleave:repeat_elements:Tensor.repeat:repeat_interleave_int
            :repeat_interleave_tensor tile
        pad:mirror_pad:padding constant_pad_nd tril triu:matrix_band_part diag
        diagonal:matrix_diag_part diag_embed:matrix_diag block_diag as_strided real imag
        view_as_real view_as_complex broadcast_tensors meshgrid atleast_1d atleast_2d alias
        identity""",
        Family.MOVING,
        _LOW,
    ),
    _ops(
        """h mh detach:stop_gradient index masked_select index_fill masked_scatter item
        index_put
            :scatter_nd_update:scatter_update:tensor_scatter_add:tensor_scatter_update
        tolist data numpy:Tensor.asnumpy requires_grad set_data""",
        Family.MOVING,
    ),
    # A small change may choose another result
    _ops("short bool byte char one_hot", Family.DISCRETE, _LOW),
    _ops("sort", Family.DISCRETE, reorders=True),
    _ops("bernoulli", Family.DISCRETE, draws_random=True, in_place=InPlace.OVERWRITES),
    _ops("rand_like", Family.DISCRETE, draws_random=True, reads_shape_only=True),
    _ops(
        """multinomial:multinomial_with_replacement fractional_max_pool2d
        fractional_max_pool3d""",
        Family.DISCRETE,
        draws_random=True,
    ),
    _ops(
        """argmax argmin argsort topk kthvalue median mode msort searchsorted bucketize histc
        histogram unique:unique_with_pad unique_consecutive nonzero gt=greater lt=less
        ge=greater_equal le=less_equal eq:equal ne=not_equal equal isclose allclose logical_and
        logical_or logical_not logical_xor round floor ceil trunc=fix frac
        floor_divide=floordiv:floor_div rfloordiv remainder=mod:floor_mod rmod fmod:truncate_mod
        sign signbit sgn heaviside fake_quantize_per_tensor_affine
        fake_quantize_per_channel_affine quantize_per_tensor quantize_per_channel isnan isinf
        isfinite count_nonzero any:reduce_any all:reduce_all bincount cummax cummin aminmax
        result_type""",
        Family.DISCRETE,
    ),
    # Whole networks in one call
    _ops(
        "lstm",
        Family.COMPOSITE,
        _CORE,
        draws_random=True,
        may_vary=True,
        unwritten_outputs=(3, 4),  # what its backward pass needs; some of it is never written
    ),
    _ops("gru:dynamic_gru rnn_tanh rnn_relu", Family.COMPOSITE, _CORE, draws_random=True),
    _ops(
        "rnn:dynamic_rnn lstm_cell gru_cell rnn_cell rnn_tanh_cell rnn_relu_cell",
        Family.COMPOSITE,
        _CORE,
    ),
    _ops(
        """transformer transformer_encoder transformer_encoder_layer transformer_decoder
        transformer_decoder_layer""",
        Family.COMPOSITE,
    ),
    _ops("transformer_encoder_layer_fwd", Family.COMPOSITE, _CORE),
    # Random numbers
    _ops(
        """normal log_normal uniform random exponential:standard_laplace cauchy geometric
        kaiming_normal kaiming_uniform xavier_normal xavier_uniform trunc_normal orthogonal sparse
        fill_mem_eff_dropout_mask""",
        Family.OTHER,
        draws_random=True,
        in_place=InPlace.OVERWRITES,
    ),
    _ops("randn_like randint_like", Family.OTHER, draws_random=True, reads_shape_only=True),
    _ops(
        """rand:uniform_real randn:standard_normal randint:uniform_int randperm poisson binomial
        normal_functional rrelu_with_noise
        rrelu_with_noise_functional fractional_max_pool2d_with_indices
        fractional_max_pool3d_with_indices standard_gamma sample_dirichlet philox_normal
        philox_uniform philox_key_split philox_key_fold_in cudnn_init_dropout_state cudnn_rnn
        miopen_rnn lstm_mps nested_tensor_softmax_with_shape svd_lowrank pca_lowrank lobpcg""",
        Family.OTHER,
        draws_random=True,
    ),
    # Little is known of these
    _ops("new_tensor", Family.OTHER, _LOW, reads_shape_only=True),
    _ops(
        """adjoint alias_copy arange:range asarray as_strided_copy as_strided_scatter as_tensor
        atleast_3d cdouble cfloat chalf conj eye fill_diagonal lift_fresh lift_fresh_copy linspace
        logspace narrow_copy pin_memory range resolve_conj resolve_neg reverse_sequence
        reversed scalar_tensor tensor:scalar_to_tensor to_copy tril_indices triu_indices
        unsafe_chunk unsafe_split unsafe_split_with_sizes xpu dim=ndimension:rank numel:size
        size=shape:dyn_shape:tensor_shape""",
        Family.OTHER,
        _LOW,
    ),
    _ops(
        """acos=arccos acosh=arccosh asin=arcsin atan2=arctan2 atanh=arctanh bitwise_and=and
        bitwise_or=or bitwise_xor=xor bitwise_not=invert bitwise_left_shift=lshift
        bitwise_right_shift=rshift igamma=gammainc igammac=gammaincc linalg_eigvals=eigvals
        matrix_exp=linalg_matrix_exp slogdet=linalg_slogdet:log_matrix_determinant
        linalg_solve:matrix_solve i0:bessel_i0 i0e:bessel_i0e i1:bessel_i1 i1e:bessel_i1e
        modified_bessel_k0:bessel_k0 scaled_modified_bessel_k0:bessel_k0e
        modified_bessel_k1:bessel_k1 scaled_modified_bessel_k1:bessel_k1e
        logit rotary_mul:rotary_position_embedding grid_sample:grid_sampler_2d:grid_sampler_3d
        nms:nms_with_mask adam:apply_adam_with_amsgrad""",
        Family.OTHER,
    ),
    # Communication
    _sent("send isend", Flow.SEND, peer=_DST, sends=_TENSOR),
    _sent("send_object_list", Flow.SEND, peer=_DST, moves_tensors=False),
    _sent("recv:Primitive.Receive irecv", Flow.RECEIVE, peer=_SRC, fills=_TENSOR),
    _sent("recv_object_list", Flow.RECEIVE, peer=_SRC, moves_tensors=False),
    _sent("batch_isend_irecv", Flow.MESSAGES),
    _sent("broadcast", Flow.FROM_ROOT, peer=_SRC),
    _sent("broadcast_object_list", Flow.FROM_ROOT, peer=_SRC, moves_tensors=False),
    _sent("scatter_tensor", Flow.FROM_ROOT, kin="scatter", peer=_SRC),
    _sent(
        "scatter:Primitive.CollectiveScatter",
        Flow.FROM_ROOT,
        kin="scatter",
        peer=Argument(2, "src"),
        fills=_TENSOR,
    ),
    _sent("scatter_object_list", Flow.FROM_ROOT, peer=Argument(2, "src"), moves_tensors=False),
    _sent("reduce", Flow.TO_ROOT, Family.ADDITIVE, peer=_DST),
    _sent("gather_into_tensor", Flow.TO_ROOT, kin="gather", peer=_DST),
    _sent(
        "gather:Primitive.CollectiveGather",
        Flow.TO_ROOT,
        kin="gather",
        peer=Argument(2, "dst"),
        fills=Argument(1, "gather_list"),
    ),
    _sent("gather_object", Flow.TO_ROOT, peer=Argument(2, "dst"), moves_tensors=False),
    _sent("all_reduce all_reduce_coalesced", Flow.BETWEEN_ALL, Family.ADDITIVE),
    _sent("all_gather", Flow.BETWEEN_ALL, kin="all_gather", fills=Argument(0, "tensor_list")),
    _sent(
        """all_gather_into_tensor=_all_gather_base
            :Primitive.AllGather:all_gather_into_tensor_uneven
        all_gather_single""",
        Flow.BETWEEN_ALL,
        kin="all_gather",
        arguments="output_tensor input_tensor",
        fills=Argument(0, "output_tensor"),
    ),
    _sent("all_gather_into_tensor_coalesced", Flow.BETWEEN_ALL),
    _sent("all_gather_object barrier", Flow.BETWEEN_ALL, moves_tensors=False),
    _sent(
        """reduce_scatter reduce_scatter_single
        reduce_scatter_tensor=_reduce_scatter_base
            :Primitive.ReduceScatter:reduce_scatter_tensor_uneven""",
        Flow.BETWEEN_ALL,
        Family.ADDITIVE,
        kin="reduce_scatter",
        arguments="output input",
        fills=_OUTPUT,
    ),
    _sent("reduce_scatter_tensor_coalesced", Flow.BETWEEN_ALL, Family.ADDITIVE),
    _sent(
        "all_to_all=all_to_all_with_output_shape:Primitive.NeighborExchange",
        Flow.BETWEEN_ALL,
        kin="all_to_all",
        fills=Argument(0, "output_tensor_list"),
    ),
    _sent(
        """all_to_all_single=all_to_all_single_with_output_shape
            :Primitive.AlltoAll:Primitive.AlltoAllV""",
        Flow.BETWEEN_ALL,
        kin="all_to_all",
        fills=_OUTPUT,
    ),
)

# Facts of operators of several entries, by the first name of each.
FURTHER: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("to type type_as float half bfloat16 double", {"casts": True}),
    (
        """linear matmul bmm mm mv bilinear tensordot einsum outer inner dot sum cumsum
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d""",
        {"linear": Linear.TENSORS},
    ),
    ("add mul rmatmul addmm addmv addbmm baddbmm", {"linear": Linear.NUMBERS_TOO}),
    ("sum nansum mean nanmean prod amax amin logsumexp", {"unordered": Unordered.REDUCED}),
    ("norm vector_norm var std", {"unordered": Unordered.REDUCED}),
    ("norm vector_norm", {"arguments": ("input", "ord", "dim")}),
    ("softmax log_softmax softmin", {"unordered": Unordered.ALONG}),
    ("matmul mm bmm dot mv vdot inner", {"unordered": Unordered.CONTRACTED}),
    ("linear", {"unordered": Unordered.FEATURES}),
    ("layer_norm rms_norm", {"unordered": Unordered.NORMALISED}),
    (
        """sqrt rsqrt pow rpow div rtruediv reciprocal log log2 log10 log1p logit acos acosh asin
        atanh norm vector_norm normalize cosine_similarity dist cdist std var""",
        {"is_singular": True},
    ),
    ("add mul maximum minimum", {"is_commutative": True}),
    ("eigh eig lobpcg", {"free_outputs": ((1,),)}),
    ("svd", {"free_outputs": ((0,), (2,))}),
)

# Words in names, in small letters and without underscores.
HINTS: Final = {
    Hint.FOLLOWS_MODE: "drop batchnorm instancenorm rrelu attention rnn lstm gru",
    Hint.DRAWS_RANDOM: "drop rand noise bernoulli multinomial sample",
    Hint.INTERPOLATES: "interpolate upsample gridsampl affinegrid",
    Hint.PLACED: "grid fractional",
    Hint.LIMITS_GRADIENTS: "clipbyglobalnorm clipgrad",
}
