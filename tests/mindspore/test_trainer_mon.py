# SPDX-License-Identifier: Apache-2.0
"""The training monitor in MindSpore's dynamic graph: exact rows, and a training that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mindspore
import msprobe
from builders.monitor_runs import config
from mindspore import Tensor, amp, nn, ops
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore import TrainerMon
from msprobe.monitor.alerts.actions import read_incidents

EVERYTHING = {
    "ops": ["min", "max", "mean", "norm", "zeros", "nans", "std", "log2_hist"],
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "ur_distribution": True,
    "mg_direction": True,
    "xy_distribution": True,
    "monitor_mbs_grad": True,
}


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4)])
        self.head = nn.Dense(4, 1)

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = ops.relu(layer(x))
        return self.head(x)


def trained(
    monitor: TrainerMon | None, *, steps: int = 3, micro_steps: int = 1, observe: Any = None
) -> list[bytes]:
    """Return the bytes of all losses, and of the parameters at the end."""
    mindspore.set_seed(1)
    net = Net()
    generator = np.random.default_rng(0)
    for one in net.get_parameters():
        one.set_data(Tensor(generator.normal(size=one.shape).astype(np.float32)))
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    if monitor is not None:
        monitor.set_monitor(net, optimizer, grad_acc_steps=micro_steps)

    def loss_of(x: Tensor) -> Tensor:
        return ops.mean(net(x) ** 2)

    both = mindspore.value_and_grad(loss_of, None, net.trainable_params())
    found = []
    for step in range(steps):
        total: Any = None
        for micro in range(micro_steps):
            loss, gradients = both(Tensor(generator.normal(size=(3, 4)).astype(np.float32)))
            found.append(loss.asnumpy().tobytes())
            if observe is not None:
                observe("micro", step, micro, net, gradients, loss)
            total = gradients if total is None else [*map(ops.add, total, gradients)]
        net(Tensor(np.ones((1, 4), np.float32)))  # an evaluation: no micro step
        if observe is not None:
            observe("before", step, 0, net, total, optimizer)
        optimizer(tuple(total))
    return found + [one.asnumpy().tobytes() for one in net.get_parameters()]


def test_training_stays_bit_identical(tmp_path: Path) -> None:
    expected = trained(None, micro_steps=2)
    with TrainerMon(config(tmp_path, **EVERYTHING)) as monitor:
        assert trained(monitor, micro_steps=2) == expected
    assert trained(None, micro_steps=2) == expected


def test_rows_are_those_of_the_tensors(tmp_path: Path) -> None:
    seen: dict[tuple[str, int, int, str], np.ndarray] = {}

    def observe(when: str, step: int, micro: int, net: Any, gradients: Any, other: Any) -> None:
        if when == "micro":
            seen["loss", step, micro, "loss"] = other.asnumpy()
            stream = "grad_unreduced"
        else:
            stream = "grad_reduced"
            for (name, one), moment in zip(net.parameters_and_names(), other.moment1, strict=True):
                seen["param_origin", step, 0, name] = one.asnumpy().copy()
                seen["exp_avg", step, 0, name] = moment.asnumpy().copy()
        for (name, _), one in zip(net.parameters_and_names(), gradients, strict=True):
            seen[stream, step, micro, name] = one.asnumpy().copy()

    with TrainerMon(config(tmp_path, **EVERYTHING)) as monitor:
        trained(monitor, micro_steps=2, observe=observe)
        path = monitor.path
    with msprobe.open_monitor(path) as run:
        assert run.steps() == [0, 1, 2]
        for (stream, step, micro, name), values in seen.items():
            if stream == "loss":
                series = run.series("run", "loss", "value").filter(step=step, micro_step=micro)
                assert series["value"].to_list() == [float(values)]
                continue
            (row,) = (
                run.table(stream, names=[name], steps=[step]).filter(micro_step=micro).to_dicts()
            )
            assert (row["min"], row["max"]) == (values.min(), values.max())
            assert row["norm"] == pytest.approx(np.linalg.norm(values.astype(np.float64)), 1e-12)
            assert row["std"] == pytest.approx(values.std(dtype=np.float64), 1e-6, 1e-12)
            assert row["zeros"] == (np.abs(values) < 1e-8).mean()
            shares = [row[key] for key in row if key.startswith("log2_")]
            assert sum(shares) == pytest.approx(1)
            assert (row["shape"], row["dtype"]) == (str(list(values.shape)), "Float32")
        assert run.series("run", "lr.0", "value")["value"].to_list() == [pytest.approx(0.01)] * 3
        assert run.series("update", "head.weight", "ratio").height == 3
        outputs = run.table("actv", steps=[1]).filter(name="head.output")
        assert outputs["micro_step"].to_list() == [0, 1]
        gradients = run.table("actv_grad", steps=[1])["name"].unique().to_list()
        assert {"head.input", "head.output", "layers.1.output"} <= set(gradients)
        (head,) = run.heads(0)
        assert head["framework"] == "mindspore"


def test_rates_are_those_of_schedules(tmp_path: Path) -> None:
    schedules = (
        nn.cosine_decay_lr(0.001, 0.1, 4, 1, 4),
        nn.PolynomialDecayLR(0.1, 0.01, 4, 1.0),
    )
    for number, schedule in enumerate(schedules):
        net = Net()
        parameters = net.trainable_params()
        groups = [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}]
        for given in (parameters, groups):
            optimizer = nn.SGD(given, schedule)
            rates = []
            with TrainerMon(config(tmp_path, run=f"{number}{given is groups}")) as monitor:
                monitor.set_monitor(net, optimizer)
                for _ in range(4):
                    rates.append(optimizer.get_lr())
                    optimizer(tuple(ops.ones_like(one) for one in parameters))
                path = monitor.path
            with msprobe.open_monitor(path) as run:
                names = run.names("run")
                assert not any("init_learning_rate" in name for name in names)
                shown = [run.series("run", f"lr.{group}", "value")["value"] for group in range(2)]
            wanted = [[one] if given is parameters else [one[0], one[1]] for one in rates]
            for group in range(len(wanted[0])):
                expected = [float(one[group].asnumpy()) for one in wanted]
                assert shown[group].to_list() == expected
                is_constant = group == 0 and given is groups
                assert is_constant or len(set(expected)) > 2


def test_losses_are_those_of_the_own_model_once(tmp_path: Path) -> None:
    net, other = Net(), Net()
    net.layers[0].recompute()
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    own = mindspore.value_and_grad(net, None, net.trainable_params())
    others = mindspore.value_and_grad(other, None, other.trainable_params())
    losses = []
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(net, optimizer)
        for step in range(3):
            x = Tensor(np.full((1, 4), step + 1, np.float32))
            others(x)
            loss, gradients = own(x)
            losses.append(loss.asnumpy().item())
            optimizer(gradients)
        path = monitor.path
    with msprobe.open_monitor(path) as run:
        assert run.series("run", "loss", "value")["value"].to_list() == losses


def test_scaled_losses_are_told_without_the_scale_and_skipped_steps_count(tmp_path: Path) -> None:
    net = nn.Dense(2, 1)
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    scaler = amp.DynamicLossScaler(2.0**10, 2, 50)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        loss = net(x).square().mean()
        return scaler.scale(loss), loss

    gradients_of = mindspore.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
    losses = []
    with TrainerMon(config(tmp_path, xy_distribution=True)) as monitor:
        monitor.set_monitor(net, optimizer)
        for batch in (1.0, 2.0, np.inf, 3.0):
            (_, loss), gradients = gradients_of(Tensor(np.full((3, 2), batch, np.float32)))
            is_finite = amp.all_finite(gradients)
            if is_finite:
                losses.append(loss.asnumpy().item())
                optimizer(scaler.unscale(gradients))
            scaler.adjust(is_finite)
        path = monitor.path
    with msprobe.open_monitor(path) as run:
        assert run.series("run", "loss", "value")["value"].to_list() == losses
        scales, skipped = (run.series("run", one, "value") for one in ("loss_scale", "skipped"))
        assert scales["value"].to_list() == [2.0**10, 2.0**10, 2.0**9]
        assert skipped["value"].to_list() == [0, 0, 1]
        assert run.table("actv", steps=[2])["micro_step"].unique().to_list() == [0]


def test_losses_of_two_models_are_two_series(tmp_path: Path) -> None:
    maker, judge = nn.Dense(2, 3), nn.Dense(3, 1)
    optimizer = nn.SGD(maker.trainable_params(), 0.01)

    def fooled(x: Tensor) -> Tensor:
        return (judge(maker(x)) - 1).square().mean()

    of_maker = mindspore.value_and_grad(fooled, None, maker.trainable_params())
    of_judge = mindspore.value_and_grad(fooled, None, judge.trainable_params())
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor([maker, judge], optimizer)
        x = Tensor(np.ones((3, 2), np.float32))
        first, _ = of_judge(x)
        second, gradients = of_maker(2 * x)
        optimizer(gradients)
        path = monitor.path
    with msprobe.open_monitor(path) as run:
        assert run.series("run", "1.loss", "value")["value"].to_list() == [first.asnumpy().item()]
        assert run.series("run", "loss", "value")["value"].to_list() == [second.asnumpy().item()]


def test_a_nan_is_told_and_hooks_go(tmp_path: Path) -> None:
    def observe(when: str, step: int, micro: int, net: Any, gradients: Any, other: Any) -> None:
        if when == "before" and step == 25:
            net.head.weight.set_data(Tensor(np.full((1, 4), np.nan, np.float32)))

    with TrainerMon(config(tmp_path, param_distribution=True)) as monitor:
        trained(monitor, steps=27, observe=observe)
        path = monitor.path
    (found,) = read_incidents(path)
    assert (found["cause"], found["start"]) == ("not_finite", 25)
    assert found["lead"]["name"] == "head.weight"


def test_control_and_values(tmp_path: Path) -> None:
    net, steps = nn.Dense(2, 1), 4
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    gradients_of = mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())
    with TrainerMon(config(tmp_path, wg_distribution=True, collect_times=3)) as monitor:
        monitor.set_monitor(net, optimizer)
        for step in range(steps):
            optimizer(gradients_of(Tensor(np.ones((3, 2), np.float32))))
            if step == 0:
                reduced, unreduced = monitor.generate_wgrad_metrics()
                assert reduced["weight", "grad_reduced"]["norm"] == pytest.approx(18**0.5)
                assert unreduced["bias", "grad_unreduced"]["norm"] == 3.0
                monitor.configure(ops=["max"])
        assert monitor.adhoc_check(Tensor([3.0, 4.0]), "a", "b") == {"norm": 5.0}
        with monitor.open() as run:
            assert run.steps() == [0, 1, 2, 3]
            assert set(run.ops("grad_reduced")) == {"norm", "max"}


def test_features_are_those_of_the_tensors(tmp_path: Path) -> None:
    class Attention(nn.Cell):
        def construct(self, query: Tensor, key: Tensor) -> Tensor:
            return query + key

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.router = nn.Dense(4, 3, has_bias=False)

        def construct(self, x: Tensor) -> Tensor:
            heads = x.view(2, 5, 1, 4)
            return self.router(self.attention(heads, heads))

    targets = {
        "attention_hook": ["attention"],
        "linear_hook": [],
        "moe_router_weight_hook": ["router"],
        "moe_router_logit_hook": ["router"],
    }
    net = Model()
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    gradients_of = mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())
    x = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    weight = net.router.weight.asnumpy().astype(np.float64)
    keys = {"recording_l2_features": True, "l2_targets": targets, "sa_order": "b,s,h,d"}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(net, optimizer)
        optimizer(gradients_of(Tensor(x)))
        with monitor.open() as run:
            found = dict(run.rows().select("op", "value").rows())
    q = x[0].reshape(5, 4).astype(np.float64)
    shares = np.exp(q @ q.T / 2) * np.tri(5)
    shares /= shares.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1).mean()
    assert found["entropy"] == pytest.approx(entropy, 1e-5)
    assert found["softmax_max"] == pytest.approx(shares.max(1).mean(), 1e-5)
    exact = np.linalg.norm(weight, 2)
    assert 0.7 * exact <= found["kernel_norm"] <= exact * (1 + 1e-6)  # estimated from below
    assert found["sr"] == pytest.approx(np.linalg.norm(weight) / found["kernel_norm"], 1e-5)
    pairs = [(0, 1), (0, 2), (1, 2)]
    cosines = [weight[i] @ weight[j] / np.sqrt((weight[i] @ weight[i]) * (weight[j] @ weight[j]))
               for i, j in pairs]  # fmt: skip
    assert found["router_weight_similarity"] == pytest.approx(np.mean(cosines), 1e-4, 1e-6)
    logits = 2 * x.reshape(-1, 4) @ weight.T
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    entropy = -(chances * np.log(chances)).sum(1).mean()
    assert found["per_token_expert_entropy"] == pytest.approx(entropy, 1e-4)


def test_what_cannot_be_monitored_is_refused(tmp_path: Path) -> None:
    monitor = TrainerMon(config(tmp_path))
    net = nn.Dense(2, 1)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    with pytest.raises(ConfigError, match="an optimizer of mindspore"):
        monitor.set_monitor(net, net)
    with pytest.raises(ConfigError, match="Cell"):
        monitor.set_monitor(3, optimizer)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    with pytest.raises(UnsupportedError, match="dynamic graph"):
        monitor.set_monitor(net, optimizer)
