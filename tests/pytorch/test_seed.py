# SPDX-License-Identifier: Apache-2.0
"""`seed_all` makes runs repeat, refuses bad arguments, and takes dropout away and gives it back."""

import importlib
import logging
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode

from msprobe.errors import ConfigError, UnsupportedError
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.training.seed import remove_dropout, restore_dropout, seed_all

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def everything_put_back(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "0"))
    monkeypatch.setenv("HCCL_DETERMINISTIC", "")
    for flag in ("enabled", "benchmark", "deterministic"):
        monkeypatch.setattr(torch.backends.cudnn, flag, getattr(torch.backends.cudnn, flag))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    restore_dropout()
    torch.use_deterministic_algorithms(deterministic)
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


def draws():
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()  # noqa: NPY002


def test_the_same_seed_gives_the_same_numbers():
    seed_all(7)
    first = draws()
    seed_all(7)
    assert draws() == first
    seed_all(8)
    assert draws() != first


def test_the_numbers_are_those_of_the_generators_own_seeds():
    seed_all()
    found = draws()
    random.seed(1234)
    np.random.seed(1234)  # noqa: NPY002
    torch.manual_seed(1234)
    assert found == draws()


def test_child_processes_hash_strings_alike():
    seed_all(99)
    assert os.environ["PYTHONHASHSEED"] == "99"
    command = [sys.executable, "-c", "print(hash('msprobe'))"]
    hashes = {subprocess.check_output(command) for _ in range(2)}
    assert len(hashes) == 1


@pytest.mark.parametrize("mode", [True, False])
def test_mode_switches_deterministic_algorithms(mode):
    seed_all(mode=mode)
    assert torch.are_deterministic_algorithms_enabled() is mode


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_ends_of_the_range_are_allowed(seed):
    seed_all(seed)


@pytest.mark.parametrize("seed", [-1, 2**32, True, 1.0, "1", None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ConfigError, match="an integer from 0 to 4294967295") as refusal:
        seed_all(seed)
    assert refusal.value.key == "seed"


@pytest.mark.parametrize("key", ["mode", "rm_dropout", "is_enhanced"])
@pytest.mark.parametrize("value", [1, "True", None])
def test_switches_are_true_or_false(key, value):
    with pytest.raises(ConfigError, match="True or False") as refusal:
        seed_all(**{key: value})
    assert refusal.value.key == key


def test_a_refusal_leaves_the_generators_alone():
    seed_all(5)
    torch.rand(1)
    before = torch.get_rng_state()
    with pytest.raises(ConfigError):
        seed_all(6, mode="yes")
    with pytest.raises(UnsupportedError, match="is_enhanced"):
        seed_all(6, is_enhanced=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_collectives_and_convolutions_are_asked_for_the_same_results_each_time():
    seed_all()
    assert os.environ["HCCL_DETERMINISTIC"] == "True"
    cudnn = torch.backends.cudnn
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, False, True)


@pytest.mark.parametrize("path", ["msprobe.pytorch.common", "msprobe.pytorch.common.utils"])
def test_scripts_import_it_from_where_the_documents_say(path):
    assert importlib.import_module(path).seed_all is seed_all


KINDS = ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"]


class TestDropout:
    def test_it_is_taken_away_unless_the_script_wants_it(self, caplog):
        x = torch.ones(1000)
        with caplog.at_level(logging.INFO, logger="msprobe"):
            seed_all(rm_dropout=False)
            assert caplog.text == ""
            assert not torch.equal(F.dropout(x, 0.5, True), x)
            seed_all()
        assert torch.equal(F.dropout(x, 0.5, True), x)
        assert "rm_dropout=False keeps it" in caplog.text

    def test_existing_modules_pass_their_input_through(self):
        x = torch.rand(2, 3, 4, 4)
        modules = [nn.Dropout(), nn.Dropout2d(), nn.Dropout1d(), nn.Dropout3d(), nn.AlphaDropout()]
        seed_all(rm_dropout=True)
        for module in modules:
            value = x if not isinstance(module, nn.Dropout1d) else x[0]
            assert torch.equal(module.train()(value), value), module

    @pytest.mark.parametrize(
        "name",
        [
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "alpha_dropout",
            "feature_alpha_dropout",
        ],
    )
    def test_every_kind_draws_no_random_numbers(self, name):
        seed_all(rm_dropout=True)
        x = torch.rand(2, 3, 4) if name == "dropout1d" else torch.rand(2, 3, 4, 4)
        before = torch.get_rng_state()
        assert torch.equal(getattr(F, name)(x, 0.5, True), x)
        assert torch.equal(torch.get_rng_state(), before)

    def test_attention_is_without_dropout_in_both_forms(self):
        seed_all(rm_dropout=True)
        q = torch.rand(1, 2, 4, 8)
        plain = F.scaled_dot_product_attention(q, q, q)
        assert torch.equal(F.scaled_dot_product_attention(q, q, q, dropout_p=0.9), plain)
        x = torch.rand(3, 2, 8)
        attention = nn.MultiheadAttention(8, 2, dropout=0.9).train()
        for need_weights in (True, False):
            outputs = [attention(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
            assert torch.equal(*outputs)

    def test_a_wrong_probability_is_still_an_error(self):
        seed_all(rm_dropout=True)
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(torch.rand(2), 1.5)

    @pytest.mark.parametrize("name", KINDS)
    def test_records_keep_the_name_of_the_function(self, name):
        class Watch(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                names.append(table.lookup(func).name)
                return func(*args, **(kwargs or {}))

        table, names = ApiTable(), []
        x = torch.rand(2, 3, 4) if name == "dropout1d" else torch.rand(2, 3, 4, 4)
        remove_dropout()
        with Watch():
            getattr(F, name)(x, 0.5, True)
        assert [found for found in names if "__get__" not in found] == [f"Functional.{name}"]

    def test_gradients_pass_through(self):
        seed_all(rm_dropout=True)
        x = torch.rand(4, requires_grad=True)
        F.dropout(x * 1, 0.5, True, inplace=True).sum().backward()
        assert torch.equal(x.grad, torch.ones(4))

    def test_it_is_undone_by_identity(self):
        before = dict(vars(F))
        remove_dropout()
        remove_dropout()
        assert dict(vars(F)) != before
        restore_dropout()
        after = dict(vars(F))
        assert after.keys() == before.keys()
        assert all(after[name] is value for name, value in before.items())
        x = torch.ones(1000)
        assert not torch.equal(F.dropout(x, 0.5, True), x)

    def test_a_later_patch_of_somebody_else_is_left_alone(self, monkeypatch):
        remove_dropout()
        theirs = object()
        monkeypatch.setattr(F, "dropout2d", theirs)
        restore_dropout()
        assert F.dropout2d is theirs
        monkeypatch.undo()
        restore_dropout()

    @pytest.mark.filterwarnings("ignore:`?torch.jit.script`? is deprecated")
    def test_models_can_still_be_scripted(self):
        remove_dropout()
        x = torch.rand(3, 4)
        scripted = torch.jit.script(nn.Sequential(nn.Dropout(), nn.Identity()).train())
        assert torch.equal(scripted(x), x)
