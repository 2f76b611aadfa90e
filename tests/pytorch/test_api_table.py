# SPDX-License-Identifier: Apache-2.0
"""Every function that PyTorch announces has a sensible place in the API table."""

import inspect
import logging
import re
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode, get_overridable_functions

from msprobe.config.choices import RiskLevel
from msprobe.errors import ConfigError
from msprobe.pytorch.apis.api_rules import Action, ApiEntry, WriteEffect, is_kept_at
from msprobe.pytorch.apis.api_table import ApiTable

pytestmark = pytest.mark.torch


class Watch(TorchFunctionMode):
    """Collects the entries of what reaches the mode."""

    def __init__(self):
        super().__init__()
        self.entries: list[ApiEntry] = []
        self.table = ApiTable()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.entries.append(self.table.lookup(func))
        return func(*args, **(kwargs or {}))

    @property
    def recorded(self):
        return [entry.name for entry in self.entries if entry.action is Action.RECORD]


@pytest.fixture(scope="module")
def overridable():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names warn when they are looked at
        return [func for group in get_overridable_functions().values() for func in group]


@pytest.fixture(scope="module")
def table():
    return ApiTable()


def test_every_overridable_function_gets_a_documented_prefix(table, overridable):
    prefixes = {table.lookup(func).prefix for func in overridable}
    assert prefixes == {"Functional", "Tensor", "Torch", "VF"}


def test_every_overridable_function_gets_a_name_that_fits_a_record(table, overridable):
    for func in overridable:
        entry = table.lookup(func)
        if entry.action is Action.RECORD:
            assert re.fullmatch(r"\w+", entry.api), func


def test_most_overridable_functions_are_recorded(table, overridable):
    recorded = [func for func in overridable if table.lookup(func).action is Action.RECORD]
    assert len(recorded) > 1000


def test_every_attribute_access_passes_through(table, overridable):
    getters = [func for func in overridable if getattr(func, "__name__", "") == "__get__"]
    assert len(getters) > 30
    assert {table.lookup(func).action for func in getters} == {Action.METADATA}
    assert {table.lookup(func).writes for func in getters} == {WriteEffect.NONE}


def test_every_function_that_torch_tags_as_random_is_known_to_be(table, overridable):
    seeded = torch.Tag.nondeterministic_seeded
    for func in overridable:
        entry = table.lookup(func)
        packet = getattr(torch.ops.aten, entry.api, None)
        overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []
        if any(seeded in getattr(packet, name).tags for name in overloads):
            assert entry.draws_random, entry.name


def test_every_in_place_method_is_known_to_write(table):
    for name in dir(torch.Tensor):
        in_place = name.endswith("_") and not name.endswith("__")
        method = getattr(torch.Tensor, name)
        if in_place and inspect.ismethoddescriptor(method):
            assert table.lookup(method).writes is not WriteEffect.NONE, name


NAMES = """
torch.relu Torch.relu | F.relu Functional.relu | torch.Tensor.relu Tensor.relu
torch.relu_ Functional.relu_ | torch.Tensor.relu_ Tensor.relu_ | F.linear Functional.linear
F.conv1d Functional.conv1d | F.conv2d Functional.conv2d | torch.conv2d Functional.conv2d
F.conv3d Functional.conv3d | F.conv_transpose2d Functional.conv_transpose2d
F.cross_entropy Functional.cross_entropy | F.nll_loss Functional.nll_loss
F.mse_loss Functional.mse_loss | F.l1_loss Functional.l1_loss
F.smooth_l1_loss Functional.smooth_l1_loss | F.huber_loss Functional.huber_loss
F.binary_cross_entropy Functional.binary_cross_entropy | F.kl_div Functional.kl_div
F.binary_cross_entropy_with_logits Functional.binary_cross_entropy_with_logits
F.scaled_dot_product_attention Functional.scaled_dot_product_attention
F.multi_head_attention_forward Functional.multi_head_attention_forward
F.gelu Functional.gelu | F.silu Functional.silu | F.mish Functional.mish | F.elu Functional.elu
F.leaky_relu Functional.leaky_relu | F.hardswish Functional.hardswish
F.hardsigmoid Functional.hardsigmoid | F.softplus Functional.softplus | F.glu Functional.glu
F.softmax Functional.softmax | F.log_softmax Functional.log_softmax
F.logsigmoid Functional.logsigmoid | F.threshold Functional.threshold
F.dropout Functional.dropout | F.dropout2d Functional.dropout2d
F.alpha_dropout Functional.alpha_dropout | F.rrelu Functional.rrelu
F.batch_norm Functional.batch_norm | F.layer_norm Functional.layer_norm
F.group_norm Functional.group_norm | F.instance_norm Functional.instance_norm
F.rms_norm Functional.rms_norm | F.normalize Functional.normalize
F.local_response_norm Functional.local_response_norm | F.embedding Functional.embedding
F.embedding_bag Functional.embedding_bag | F.one_hot Functional.one_hot | F.pad Functional.pad
F.interpolate Functional.interpolate | F.grid_sample Functional.grid_sample
F.avg_pool2d Functional.avg_pool2d | F.adaptive_avg_pool2d Functional.adaptive_avg_pool2d
F.unfold Functional.unfold | F.fold Functional.fold | F.pixel_shuffle Functional.pixel_shuffle
F.cosine_similarity Functional.cosine_similarity | F.prelu Functional.prelu
F.bilinear Functional.bilinear | F.gumbel_softmax Functional.gumbel_softmax
F.ctc_loss Functional.ctc_loss | F.triplet_margin_loss Functional.triplet_margin_loss
torch.matmul Torch.matmul | torch.mm Torch.mm | torch.bmm Torch.bmm | torch.addmm Torch.addmm
torch.einsum Torch.einsum | torch.tensordot Torch.tensordot | torch.dot Torch.dot
torch.cat Torch.cat | torch.stack Torch.stack | torch.split Torch.split | torch.chunk Torch.chunk
torch.where Torch.where | torch.gather Torch.gather | torch.topk Torch.topk
torch.sort Torch.sort | torch.cumsum Torch.cumsum | torch.norm Torch.norm | torch.exp Torch.exp
torch.log Torch.log | torch.sqrt Torch.sqrt | torch.rsqrt Torch.rsqrt | torch.pow Torch.pow
torch.sigmoid Torch.sigmoid | torch.tanh Torch.tanh | torch.softmax Torch.softmax
torch.sum Torch.sum | torch.mean Torch.mean | torch.var Torch.var | torch.max Torch.max
torch.argmax Torch.argmax | torch.clamp Torch.clamp | torch.abs Torch.abs | torch.add Torch.add
torch.mul Torch.mul | torch.sub Torch.sub | torch.div Torch.div | torch.outer Torch.outer
torch.zeros Torch.zeros | torch.ones Torch.ones | torch.full Torch.full
torch.arange Torch.arange | torch.tensor Torch.tensor | torch.rand Torch.rand
torch.randn Torch.randn | torch.zeros_like Torch.zeros_like | torch.bernoulli Torch.bernoulli
torch.multinomial Torch.multinomial | torch.meshgrid Torch.meshgrid | torch.cdist Torch.cdist
torch.linalg.norm Torch.norm | torch.linalg.vector_norm Torch.vector_norm
torch.linalg.svd Torch.svd | torch.linalg.inv Torch.inv | torch.linalg.solve Torch.solve
torch.fft.fft Torch.fft | torch.fft.irfft Torch.irfft | torch.special.expit Torch.expit
torch.sparse.mm Torch.mm | torch._foreach_add_ Torch._foreach_add_
torch._fused_adamw_ Torch._fused_adamw_ | torch.nn.init.normal_ Torch.normal_
torch._VF.lstm VF.lstm | torch.lstm VF.lstm | torch._VF.gru VF.gru
torch._VF.rnn_tanh VF.rnn_tanh | torch._VF.lstm_cell VF.lstm_cell
torch.Tensor.add Tensor.add | torch.Tensor.add_ Tensor.add_ | torch.Tensor.mul Tensor.mul
torch.Tensor.matmul Tensor.matmul | torch.Tensor.view Tensor.view
torch.Tensor.reshape Tensor.reshape | torch.Tensor.permute Tensor.permute
torch.Tensor.transpose Tensor.transpose | torch.Tensor.contiguous Tensor.contiguous
torch.Tensor.to Tensor.to | torch.Tensor.float Tensor.float | torch.Tensor.half Tensor.half
torch.Tensor.clone Tensor.clone | torch.Tensor.sum Tensor.sum | torch.Tensor.mean Tensor.mean
torch.Tensor.softmax Tensor.softmax | torch.Tensor.masked_fill Tensor.masked_fill
torch.Tensor.masked_fill_ Tensor.masked_fill_ | torch.Tensor.copy_ Tensor.copy_
torch.Tensor.zero_ Tensor.zero_ | torch.Tensor.normal_ Tensor.normal_
torch.Tensor.__getitem__ Tensor.__getitem__ | torch.Tensor.__setitem__ Tensor.__setitem__
torch.Tensor.__rsub__ Tensor.__rsub__ | torch.Tensor.__pow__ Tensor.__pow__
torch.Tensor.__eq__ Tensor.__eq__ | torch.Tensor.__and__ Tensor.__and__
torch.Tensor.norm Tensor.norm | torch.Tensor.split Tensor.split | torch.Tensor.unique Tensor.unique
torch.ops.aten.relu Aten.relu | torch.ops.aten.add.Tensor Aten.add
"""


PAIRS = [pair.split() for pair in re.split(r"[|\n]", NAMES) if pair.strip()]


@pytest.mark.parametrize(("path", "name"), PAIRS)
def test_well_known_functions_are_recorded_under_their_documented_names(table, path, name):
    func = eval(path, {"torch": torch, "F": F})
    entry = table.lookup(func)
    assert (entry.name, entry.action) == (name, Action.RECORD)


READERS = """
size dim stride numel is_contiguous item tolist requires_grad_ register_hook retain_grad data_ptr
numpy __len__ __repr__ __bool__ __float__ detach __deepcopy__ get_device
"""


@pytest.mark.parametrize("method", READERS.split())
def test_methods_that_only_read_or_set_properties_pass_through(table, method):
    assert table.lookup(getattr(torch.Tensor, method)).action is Action.METADATA


@pytest.mark.parametrize(
    "func", [torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad]
)
def test_backward_passes_are_entered(table, func):
    assert table.lookup(func).action is Action.BACKWARD_ENTRY


@pytest.mark.parametrize(
    "func",
    [torch._C._set_grad_enabled, torch._make_dual, torch.ops.profiler._record_function_enter_new],
)
def test_plumbing_passes_through(table, func):
    assert table.lookup(func).action is Action.METADATA


def test_fused_transformer_kernels_take_the_fast_path(table):
    for func in (torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention):
        assert table.lookup(func).action is Action.FAST_PATH


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.LSTM(4, 4), "VF.lstm"),
        (nn.GRU(4, 4), "VF.gru"),
        (nn.RNN(4, 4), "VF.rnn_tanh"),
        (nn.RNN(4, 4, nonlinearity="relu"), "VF.rnn_relu"),
        (nn.LSTMCell(4, 4), "VF.lstm_cell"),
        (nn.GRUCell(4, 4), "VF.gru_cell"),
        (nn.Conv1d(4, 4, 1), "Functional.conv1d"),
        (nn.MaxPool1d(2), "Functional.max_pool1d"),
        (nn.Embedding(4, 4), "Functional.embedding"),
        (nn.MultiheadAttention(4, 2), "Functional.multi_head_attention_forward"),
    ],
)
def test_modules_reach_the_mode_as_these_apis(module, name):
    x = torch.rand(4, 4)
    arguments = {nn.Embedding: (torch.tensor([1, 2]),), nn.MultiheadAttention: (x, x, x)}
    with Watch() as seen:
        module(*arguments.get(type(module), (x,)))
    assert name in seen.recorded


def test_what_an_optimizer_does_is_seen():
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    with Watch() as seen:
        optimizer.step()
    assert "Torch._fused_adamw_" in seen.recorded


class TestWrites:
    def test_in_place_methods_and_operators_move_the_version(self, table):
        for name in ("add_", "__iadd__", "__setitem__", "relu_", "copy_", "zero_"):
            assert table.lookup(getattr(torch.Tensor, name)).writes is WriteEffect.VERSIONED

    @pytest.mark.parametrize(
        "func",
        [
            F.batch_norm,
            torch.batch_norm,
            F.instance_norm,
            F.embedding,
            torch._foreach_add_,
            torch._fused_adamw_,
            torch._amp_foreach_non_finite_check_and_unscale_,
            torch.ops.aten.native_batch_norm.default,
        ],
    )
    def test_some_functions_write_without_moving_it(self, table, func):
        assert table.lookup(func).writes is WriteEffect.UNVERSIONED

    def test_plain_functions_write_nothing(self, table):
        for func in (torch.relu, F.linear, torch.Tensor.add, torch.Tensor.__getitem__):
            assert table.lookup(func).writes is WriteEffect.NONE

    def test_changed_arguments_are_the_output_where_nothing_is_returned(self, table):
        assert table.lookup(torch.Tensor.__setitem__).returns_mutated
        assert table.lookup(torch._foreach_add_).returns_mutated
        assert not table.lookup(torch.Tensor.add_).returns_mutated

    @pytest.mark.parametrize(
        "func",
        [
            torch.Tensor.numpy,
            torch.Tensor.__array__,
            torch.Tensor.__dlpack__,
            torch.utils.dlpack.to_dlpack,
            torch.Tensor.data_ptr,
            torch.Tensor.untyped_storage,
            torch.Tensor.set_,
            torch.Tensor.resize_,
            torch.Tensor.share_memory_,
            torch.Tensor.data.__get__,
            torch.Tensor.data.__set__,
            torch.Tensor.grad.__set__,
            torch.as_tensor,
        ],
    )
    def test_storages_that_escape_are_banned(self, table, func):
        assert table.lookup(func).bans

    def test_ordinary_functions_ban_nothing(self, table):
        for func in (torch.relu, torch.Tensor.view, torch.Tensor.size, torch.ops.aten.add.Tensor):
            assert not table.lookup(func).bans


@pytest.fixture(scope="module")
def ops():
    library = torch.library.Library("msprobe_table", "DEF")
    library.define("scale(Tensor x, float by) -> Tensor")
    library.define("fill_in(Tensor(a!) x) -> ()")
    library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("scale", lambda x, by: x * by, "CompositeExplicitAutograd")
    yield torch.ops.msprobe_table
    library._destroy()


class TestCustomOperators:
    def test_their_namespace_is_the_prefix(self, table, ops):
        assert table.lookup(ops.scale).name == "msprobe_table.scale"
        assert table.lookup(ops.scale.default).name == "msprobe_table.scale"
        assert table.lookup(ops.scale).action is Action.RECORD

    def test_they_reach_the_mode_under_that_name(self, ops):
        with Watch() as seen:
            ops.scale(torch.ones(2), 2.0)
        assert "msprobe_table.scale" in seen.recorded

    def test_nothing_is_assumed_about_their_memory(self, table, ops):
        assert table.lookup(ops.scale).bans
        assert table.lookup(ops.fill_in).writes is WriteEffect.UNVERSIONED
        assert table.lookup(ops.fill_in).returns_mutated
        assert not table.lookup(ops.scale).returns_mutated

    def test_their_tags_say_whether_they_are_random(self, table, ops):
        assert table.lookup(ops.noise).draws_random
        assert not table.lookup(ops.scale).draws_random


class TestLookup:
    def test_attribute_access_is_one_entry_however_often_it_is_made(self, table):
        assert table.lookup(torch.Tensor.shape.__get__) is table.lookup(torch.Tensor.shape.__get__)

    def test_an_unhashable_function_is_answered_too(self, table):
        class Unhashable:
            __hash__ = None

            def __call__(self):
                return None

        assert table.lookup(Unhashable()).api == "Unhashable"

    def test_functions_of_other_packages_carry_the_package_name(self, table):
        def fused_attention():
            return None

        fused_attention.__module__ = "their_kernels.attention.fast"
        assert table.lookup(fused_attention).name == "their_kernels.fused_attention"

    def test_entries_cannot_be_changed(self, table):
        with pytest.raises(AttributeError):
            table.lookup(torch.relu).api = "other"


class TestRisk:
    def test_families_that_compute_are_core(self, table):
        for func in (F.linear, F.conv2d, torch.matmul, F.layer_norm, torch._VF.lstm):
            assert table.lookup(func).risk is RiskLevel.CORE

    def test_functions_that_move_data_are_kept_only_at_all(self, table):
        for func in (torch.Tensor.view, torch.cat, torch.Tensor.float, torch.zeros, torch.clamp):
            assert table.lookup(func).risk is RiskLevel.ALL

    def test_the_rest_is_in_between(self, table):
        for func in (F.relu, torch.exp, torch.Tensor.add, F.cross_entropy):
            assert table.lookup(func).risk is RiskLevel.FOCUS

    def test_a_level_keeps_what_stricter_levels_keep(self, table):
        linear, relu, view = map(table.lookup, (F.linear, F.relu, torch.Tensor.view))
        kept = {
            level: [is_kept_at(entry, level) for entry in (linear, relu, view)]
            for level in RiskLevel
        }
        assert kept == {
            RiskLevel.CORE: [True, False, False],
            RiskLevel.FOCUS: [True, True, False],
            RiskLevel.ALL: [True, True, True],
        }


class TestUserTable:
    def write(self, tmp_path, text):
        path = tmp_path / "apis.yaml"
        path.write_text(text)
        return path

    def test_a_group_that_is_given_is_complete(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "functional: [linear]\n"))
        assert table.lookup(F.linear).action is Action.RECORD
        assert table.lookup(F.gelu).action is Action.METADATA

    def test_a_group_that_is_missing_keeps_the_default(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "functional: [linear]\n"))
        assert table.lookup(torch.exp).action is Action.RECORD

    def test_what_a_removed_python_function_does_inside_stays_visible(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "functional: [linear]\n"))
        assert table.lookup(F.multi_head_attention_forward).action is Action.DESCEND

    def test_a_removed_function_still_says_what_it_writes(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "functional: [linear]\ntensor: []\n"))
        assert table.lookup(F.batch_norm).writes is WriteEffect.UNVERSIONED
        assert table.lookup(torch.Tensor.add_).writes is WriteEffect.VERSIONED

    def test_what_a_removed_function_may_write_unseen_is_banned(self):
        entry = ApiTable.from_yaml(black_list=["_foreach_add_", "add_"]).lookup
        assert entry(torch._foreach_add_).bans
        assert not entry(torch.Tensor.add_).bans
        assert not ApiTable().lookup(torch._foreach_add_).bans

    def test_names_may_be_added(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "tensor: [item, detach]\n"))
        assert table.lookup(torch.Tensor.item).action is Action.RECORD
        assert table.lookup(torch.Tensor.tolist).action is Action.METADATA

    def test_dotted_names_count_by_their_last_part(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "torch: [linalg.vector_norm]\n"))
        assert table.lookup(torch.linalg.vector_norm).action is Action.RECORD
        assert table.lookup(torch.exp).action is Action.METADATA

    def test_an_operator_name_stands_for_its_method(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "tensor: [__add__]\n"))
        assert table.lookup(torch.Tensor.add).action is Action.RECORD
        assert table.lookup(torch.Tensor.sub).action is Action.METADATA

    def test_a_function_counts_under_any_of_its_names(self, tmp_path):
        path = self.write(tmp_path, "functional: [linear]\ntorch: [conv2d]\n")
        assert ApiTable.from_yaml(path).lookup(F.conv2d).action is Action.RECORD

    def test_backward_passes_are_entered_whatever_is_listed(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, "tensor: [add]\n"))
        assert table.lookup(torch.Tensor.backward).action is Action.BACKWARD_ENTRY

    def test_named_operator_namespaces_stay_recorded(self, tmp_path):
        path = self.write(tmp_path, "aten: [relu]\n")
        assert ApiTable.from_yaml(path).lookup(torch.ops.aten.exp).action is Action.METADATA
        kept = ApiTable.from_yaml(path, custom_op_namespaces=["aten"])
        assert kept.lookup(torch.ops.aten.exp).action is Action.RECORD

    def test_unknown_names_are_reported_with_the_nearest(self, tmp_path, caplog):
        path = self.write(tmp_path, "functional: [linaer, gelu]\naten: [adddmm]\n")
        with caplog.at_level(logging.WARNING, logger="msprobe"):
            ApiTable.from_yaml(path)
        assert "linaer (nearest: linear)" in caplog.text
        assert "adddmm (nearest: addmm" in caplog.text
        assert "gelu" not in caplog.text

    def test_lists_made_for_another_version_of_pytorch_are_not_called_misspelt(
        self, tmp_path, caplog
    ):
        path = self.write(
            tmp_path,
            "tensor: [align_as, align_to, add]\ntorch: [align_tensors, linalg.norm]\n_VF: [lstm]\n"
            "aten: [__doc__, __name__, __loader__, name, _dir, _list_to_tensor, relu]\n",
        )
        with caplog.at_level(logging.WARNING, logger="msprobe"):
            table = ApiTable.from_yaml(path)
        assert caplog.text == ""
        assert table.lookup(torch.Tensor.add).action is Action.RECORD
        assert table.lookup(torch.ops.aten.relu).action is Action.RECORD
        assert table.lookup(torch.ops.aten.exp).action is Action.METADATA

    @pytest.mark.parametrize(
        ("text", "key", "hint"),
        [
            ("[a, b]", "api_list", "groups of API names"),
            ("functional: linear", "api_list.functional", "a list of API names"),
            ("functional: [1]", "api_list.functional", "a list of API names"),
            ("fuctional: [linear]", "api_list.fuctional", 'the nearest is "functional"'),
            ("a: [", "api_list", "a readable YAML file"),
            ("functional: [a\ntorch: b]", "api_list", "(line 2, column 6: "),
            ("!!python/object/apply:os.getcwd []", "api_list", "a readable YAML file"),
        ],
    )
    def test_files_that_cannot_be_used_are_refused(self, tmp_path, text, key, hint):
        with pytest.raises(ConfigError, match=re.escape(hint)) as refusal:
            ApiTable.from_yaml(self.write(tmp_path, text))
        assert refusal.value.key == key

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="No such file"):
            ApiTable.from_yaml(tmp_path / "none.yaml")

    def test_an_empty_file_changes_nothing(self, tmp_path):
        table = ApiTable.from_yaml(self.write(tmp_path, ""))
        assert table.lookup(F.gelu).action is Action.RECORD


class TestBlackList:
    def test_a_full_name_excludes_one_api(self):
        table = ApiTable.from_yaml(black_list=["Functional.relu"])
        assert table.lookup(F.relu).action is Action.DESCEND
        assert table.lookup(torch.relu).action is Action.RECORD

    def test_a_bare_name_excludes_it_everywhere(self):
        table = ApiTable.from_yaml(black_list=["relu"])
        assert table.lookup(torch.relu).action is Action.METADATA
        assert table.lookup(torch.Tensor.relu).action is Action.METADATA

    def test_an_operator_name_excludes_its_method(self):
        table = ApiTable.from_yaml(black_list=["Tensor.__add__"])
        assert table.lookup(torch.Tensor.add).action is Action.METADATA

    def test_unknown_names_are_reported(self, caplog):
        with caplog.at_level(logging.WARNING, logger="msprobe"):
            ApiTable.from_yaml(black_list=["sofmax", "Torch.exp"])
        assert "sofmax (nearest: softmax)" in caplog.text
        assert "exp" not in caplog.text.replace("nearest", "")
