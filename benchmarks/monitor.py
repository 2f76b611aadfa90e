# SPDX-License-Identifier: Apache-2.0
"""The cost of monitoring: time of a training step by what is collected, and the store at scale.

    python benchmarks/monitor.py                     the table of steps
    python benchmarks/monitor.py --store             100,000 tensors, 1,000 steps (3.2 GB on disk)
    python benchmarks/monitor.py --page              the page of a run of 1,000 tensors, 1,000 steps

A 6-layer transformer (width 256, batch 16 of 16 tokens, 2 micro steps, AdamW), one thread. Time is
CPU time of the process, so the thread of the recorder counts. Steps with and without run in turn
in one process: what disturbs one disturbs the other. Of the page: from an input to the frame that
shows its result, in Chromium, with the server in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars  # noqa: F401 - its import is no part of what is measured
import torch
from torch import nn

import msprobe
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter
from msprobe.pytorch import TrainerMon

_OPS, _STREAM = ("min", "max", "norm", "mean"), "grad_reduced"
SIX_OPS = ["min", "max", "norm", "mean", "zeros", "nans"]
GRADIENTS_AND_STATE = {"wg_distribution": True, "mv_distribution": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "attached, step not collected": {"start_step": 10**6, "wg_distribution": True},
    "numbers of the run": {},
    "optimizer state": {"mv_distribution": True},
    "gradients and optimizer state": GRADIENTS_AND_STATE,
    "parameters before and after": {"param_distribution": True},
    "activations and their gradients": {"xy_distribution": True},
    "everything": {**GRADIENTS_AND_STATE, "param_distribution": True, "xy_distribution": True},
}
MUST = {
    "attached, step not collected": 0.005,
    "gradients and optimizer state": 0.05,
    "parameters before and after": 0.04,
    "activations and their gradients": 0.30,
    "everything": 0.40,
}


class Training:
    """One training of the model."""

    def __init__(self, settings: dict[str, Any] | None, folder: Path) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(1000, 256), encoder, nn.Linear(256, 1000))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.monitor: TrainerMon | None = None
        self.times: list[float] = []
        if settings is not None:
            path = folder / "monitor.json"
            keys = {"ops": SIX_OPS, "output_dir": str(folder), **settings}
            path.write_text(json.dumps(keys))
            self.monitor = TrainerMon(path)
            self.monitor.set_monitor(self.model, self.optimizer, grad_acc_steps=2)

    def step(self) -> float:
        """Train one step; return its CPU time."""
        started = time.process_time()
        for _ in range(2):
            tokens = torch.randint(1000, (16, 16))
            logits = self.model(tokens)
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.monitor is not None and self.monitor._recorder is not None:
            self.monitor._recorder.wait()
        return time.process_time() - started


def pair(name: str, rounds: int) -> None:
    """Print the cost of one setting, from steps with and without it in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, monitored = Training(None, Path(folder)), Training(SETTINGS[name], Path(folder))
        for round_ in range(rounds + 2):
            for training in (plain, monitored) if round_ % 2 else (monitored, plain):
                elapsed = training.step()
                if round_ >= 2:
                    training.times.append(elapsed)
        if monitored.monitor is not None:
            monitored.monitor.close()
    before, after = (quartile(one.times) for one in (plain, monitored))
    must = f"{MUST[name]:.1%}" if name in MUST else ""
    print(f"{name:34} {before * 1e3:7.1f} {after * 1e3:9.1f} {after / before - 1:7.1%} {must:>6}")


def quartile(times: list[float]) -> float:
    """Return the lower quartile, which a busy machine disturbs least."""
    return statistics.quantiles(times, n=4)[0]


def steps_table(rounds: int, only: list[str]) -> None:
    """Print the cost of each setting; hooks on modules are global, so each has its own process."""
    print(f"{'collected':34} {'plain':>7} {'monitored':>9} {'added':>7} {'must':>6}", flush=True)
    for name in only or SETTINGS:
        own = [sys.executable, __file__, "--pair", name, "--rounds", str(rounds)]
        subprocess.run(own, check=True, env={**os.environ, "MSPROBE_LOG_LEVEL": "3"})


def _names(tensors: int) -> tuple[str, ...]:
    return tuple(f"layers.{number}.weight" for number in range(tensors))


def _write(folder: Path, tensors: int, steps: int, streams: Sequence[str] = (_STREAM,)) -> None:
    """Write a run whose values are equal in all steps, but for a factor."""
    zeros, empty = (0,) * tensors, ("[256, 256]",) * tensors
    layouts = [Layout(one, _OPS, _names(tensors), zeros, zeros, empty, empty) for one in streams]
    values = np.random.default_rng(0).standard_normal((4, tensors))
    with RunWriter(folder, 0, {}) as writer:
        for step in range(steps):
            for layout in layouts:
                writer.append(Rows(layout, 0, step, 0, float(step), values * (1 + step % 7)))
            writer.flush()


def store_table(tensors: int, steps: int) -> None:
    """Print size and times of a large store."""
    names = _names(tensors)

    def timed(what: str, action: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = action()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{what:34} {wall * 1e3:9.1f} ms, CPU {cpu * 1e3:9.1f} ms")
        return result

    with tempfile.TemporaryDirectory() as folder:
        timed("write", lambda: _write(Path(folder), tensors, steps))
        size = sum(one.stat().st_size for one in Path(folder).iterdir())
        count = tensors * steps * 4
        print(f"{'size':34} {size / 1e9:.2f} GB, {size / count:.2f} bytes a value")
        run = timed("open", lambda: msprobe.open_monitor(folder))
        timed("one series", lambda: run.series("grad_reduced", names[tensors // 2], "norm"))
        _forget(Path(folder))
        timed("one series, from the disk", lambda: run.series("grad_reduced", names[7], "norm"))
        run.close()
        pictures = timed("open the page", lambda: Pictures([msprobe.open_monitor(folder)]))
        timed("its overview", pictures.overview)
        _forget(Path(folder))
        timed("first heat map, from the disk", lambda: pictures.heat("grad_reduced", "norm"))
        timed("the series of a click", lambda: pictures.series("grad_reduced", names[5], "norm"))
        _forget(Path(folder))
        timed("another one, from the disk", lambda: pictures.heat("grad_reduced", "max"))


def _forget(folder: Path) -> None:
    """Have the system forget what it keeps of files in memory."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


_DRAWN = """for (const name of ["drawImage", "stroke"]) {
  const pen = CanvasRenderingContext2D.prototype, real = pen[name];
  pen[name] = function (...all) { real.apply(this, all); window[name] = performance.now(); };
}"""
# From an input to the frame that shows the heat map (drawImage) or the series (stroke).
_ACT = """async ([act, sign]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const rest = () => new Promise((done) => setTimeout(done));
  await frame();
  const begin = performance.now();
  window[sign] = 0;
  new Function(act)();
  while (!window[sign]) await rest();
  await frame();
  await rest();
  return performance.now() - begin;
}"""
_CHOOSE = """const box = document.getElementById("heat-%s");
box.value = "%s"; box.dispatchEvent(new Event("change"))"""
_PRESS = """document.getElementById("heat-map").dispatchEvent(
  new KeyboardEvent("keydown", { key: "%s", bubbles: true, cancelable: true }));"""
_LAYERS = _CHOOSE % ("axis", "layer")
_INPUTS = {
    "another operation": (_CHOOSE % ("op", "max"), _CHOOSE % ("op", "norm")),
    "another stream": (_CHOOSE % ("stream", "exp_avg"), _CHOOSE % ("stream", _STREAM)),
    "logarithmic": ('document.getElementById("heat-log").click()',),
    "an arrow": (_PRESS % "ArrowDown", _PRESS % "ArrowRight"),
    "the series of a cell": (_PRESS % "ArrowDown" + _PRESS % "Enter",),
    "ranks over steps, and back": (_CHOOSE % ("axis", "rank"), _LAYERS),
    "layers over ranks, and back": (_CHOOSE % ("axis", "layers of ranks"), _LAYERS),
}


def page_table(rounds: int) -> None:
    """Print how long the page of a million points takes for each input."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        _write(Path(folder), 1_000, 1_000, (_STREAM, "exp_avg"))
        own = [sys.executable, "-m", "msprobe", "monitor", "view", folder, "--no-browser"]
        server = subprocess.Popen(own, stdout=subprocess.PIPE, text=True)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1500, "height": 950}, bypass_csp=True)
        page = context.new_page()
        page.add_init_script(_DRAWN)
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        page.goto(url)
        page.wait_for_function("document.querySelector('#heat-map').ariaLabel")
        page.wait_for_timeout(10_000)  # incidents are found meanwhile
        for name, inputs in _INPUTS.items():
            sign = "stroke" if "series" in name else "drawImage"
            found = [page.evaluate(_ACT, [one, sign]) for _ in range(rounds) for one in inputs]
            kept = found[len(inputs) :]
            print(f"{name:34} {statistics.median(kept):5.0f} ms, first {found[0]:.0f}", flush=True)
        browser.close()
        server.terminate()
        server.wait()


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--pair", help=argparse.SUPPRESS)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_000)
    arguments = parser.parse_args()
    if arguments.pair:
        pair(arguments.pair, arguments.rounds)
    elif arguments.page:
        page_table(arguments.rounds)
    elif arguments.store:
        store_table(arguments.tensors, arguments.steps)
    else:
        steps_table(arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
