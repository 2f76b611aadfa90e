# SPDX-License-Identifier: Apache-2.0
"""A dump with one of everything that the terminal views show, and a browser for pages."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from msprobe.dump.records import TensorRecord
from msprobe.dump.writer import DumpHead, DumpWriter

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WEIGHT = {"requires_grad": True, "value_id": 3}
USER = "File train.py, line 41, in forward, \n x = self.attn(self.norm(x)) + x"
LIBRARY = "File site-packages/torch/nn/modules/module.py, line 1778, in _call_impl, \n return f(x)"


def tensor(
    shape: tuple[int, ...],
    low: float | None = -1.5,
    high: float | None = 2.0,
    dtype: str = "bfloat16",
    **more: object,
) -> TensorRecord:
    mean, norm = (0.03125, 181.019) if low is not None else (None, None)
    if isinstance(low, float) and math.isnan(low):
        mean = norm = math.nan
    record = {"max": high, "min": low, "mean": mean, "norm": norm, "requires_grad": False}
    return TensorRecord("torch.Tensor", f"torch.{dtype}", shape, **{**record, **more})


def call(dump, order, name, parent, record, stack=None):
    dump.put_call(name, order, parent, stack)
    if record is not None:
        dump.put_record(name, order, record, nonfinite=True)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump path; its names and numbers are fixed, so that golden files hold."""
    dump_path = tmp_path_factory.mktemp("sample") / "dump"
    writer = DumpWriter()
    for step, rank in ((0, "rank0"), (0, "rank1"), (12, "rank0")):
        directory = dump_path / f"step{step}" / rank
        dump = writer.open(directory, DumpHead("statistics", "mix", "pytorch"))
        write_calls(dump)
        dump.write_account(
            {
                "step": step,
                "complete": True,
                "records": 13,
                "tensors": 0,
                "bytes": 12345,
                "capture_ms": 1.234,
                "skipped": {"outside scope": 7},
                "errors": {},
                "notes": ["2 calls in other threads were not recorded"],
            }
        )
        dump.close()
    writer.close()
    return dump_path


def write_calls(dump) -> None:
    nan = math.nan
    x, bad = tensor((8, 128, 256), value_id=1), tensor((8, 128, 256), nan, nan, nan_count=12)
    bad_counted = tensor(
        (8, 128, 256),
        -math.inf,
        math.inf,
        neg_inf_count=1,
        pos_inf_count=2,
        finite_min=-3.0,
        finite_max=60000.0,
    )
    layer = "Module.layers.0.Block.forward.0"
    attention = "Module.layers.0.self_attn.MultiheadAttention.forward.0"
    dump.put_frames(
        0, [LIBRARY, LIBRARY, USER, LIBRARY, "File train.py, line 90, in <module>, \n main()"]
    )
    call(
        dump,
        0,
        "Module.GPT.forward.0",
        None,
        {"input_args": [x], "input_kwargs": {}, "output": [bad]},
        0,
    )
    ids = tensor((8, 128), 0, 50256, "int64")
    call(
        dump,
        1,
        "Functional.embedding.0.forward",
        "Module.GPT.forward.0",
        {
            "input_args": [ids, tensor((50257, 256), **WEIGHT)],
            "input_kwargs": {"padding_idx": None},
            "output": [x],
        },
        0,
    )
    call(
        dump,
        2,
        layer,
        "Module.GPT.forward.0",
        {"input_args": [x], "input_kwargs": {}, "output": [bad], "recomputed": 1},
        0,
    )
    call(
        dump,
        3,
        attention,
        layer,
        {
            "input_args": [x, x, x],
            "input_kwargs": {
                "need_weights": {"type": "bool", "value": False},
                "mask": None,
                "size": {"type": "torch.Size", "value": [8, 128]},
            },
            "output": [[bad_counted, None]],
            "parameters": {
                "in_proj_weight": tensor(
                    (768, 256),
                    1e-30,
                    1.0 / 3,
                    "float32",
                    **WEIGHT,
                    stride=[1, 768],
                    device="cuda:0",
                )
            },
        },
        0,
    )
    call(
        dump,
        4,
        "Functional.multi_head_attention_forward.0.forward",
        attention,
        {"input_args": [x], "output": [bad_counted]},
    )
    call(
        dump,
        5,
        "Tensor.__add__.0.forward",
        layer,
        {"input_args": [bad_counted, x], "output": [bad]},
    )
    call(
        dump,
        6,
        "Tensor.any.0.forward",
        layer,
        {"input_args": [bad], "output": [tensor((), True, True, "bool", mean=None, norm=None)]},
    )
    call(
        dump,
        7,
        "Tensor.item.0.forward",
        layer,
        {"input_args": [tensor((), 3, 3, "int32")], "output": [{"type": "int", "value": 3}]},
    )
    call(
        dump,
        8,
        "Torch.linalg_cholesky.0.forward",
        layer,
        {"input_args": [bad], "raised": "LinAlgError: not positive-definite"},
    )
    call(
        dump,
        9,
        "Torch.empty.0.forward",
        layer,
        {"input_args": [], "output": [tensor((0, 4), None, None)]},
    )
    call(dump, 10, "Tensor.view.0.forward", layer, None)
    call(dump, 11, "Module.GPT.backward.0", None, None)
    call(
        dump,
        12,
        "Module.layers.0.Block.backward.0",
        "Module.GPT.backward.0",
        {
            "input": [x],
            "output": [None, tensor((8, 128, 256), -1e-12, 1e-12)],
            "remarks": {"output.0": "no gradient arrived"},
        },
    )
    for order in (20, 21):
        call(dump, order, f"Tensor.add_.{order - 20}.forward", "optimizer", {"output": [x]})
    dump.put_record(
        "Module.layers.0.Block.parameters_grad", 13, {"weight": [tensor((768, 256), -70000.0, 1e5)]}
    )


@pytest.fixture(scope="session")
def browser() -> Iterator:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        text = f"none of {', '.join(BROWSERS)} is installed"
        if os.environ.get("MSPROBE_TEST_BROWSER") == "required":
            pytest.fail(text)
        pytest.skip(text)
    sync_api = pytest.importorskip("playwright.sync_api")
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


@pytest.fixture
def open_file(browser) -> Iterator:
    """Return a function that opens a page; errors in it, and requests, fail the test."""
    said: list[str] = []
    contexts = []

    def note(path: Path, url: str) -> None:
        if url.partition("#")[0] != path.as_uri():
            said.append(url)

    def show(path: Path, *, width: int = 1400, theme: str = "light", fragment: str = ""):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: note(path, request.url))
        page.goto(f"{path.as_uri()}#{fragment}" if fragment else path.as_uri())
        return page

    show.said = said
    yield show
    for context in contexts:
        context.close()
    assert said == []
