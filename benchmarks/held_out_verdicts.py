# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a cause is a line of a table
"""Causes and legal pairs of programs that the verdict was not made by: are their verdicts right?

    python benchmarks/held_out_verdicts.py [--only WORDS] [--levels mix L1 L0] [--task tensor] [--set fifth]

Prints each verdict that is wrong, and the scores. They are in docs/performance.md, the first ones
as well.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import held_out_eighth as eighth
import held_out_fifth as fifth
import held_out_fourth as fourth
import held_out_ninth as ninth
import held_out_ninth_causes as ninth_causes
import held_out_programs as loops
import held_out_seventh as seventh
import held_out_seventh_causes as seventh_causes
import held_out_sixth as sixth
import held_out_sixth_causes as sixth_causes
import held_out_tenth as tenth
import held_out_trainers as trainers
import torch
from held_out_cases import L0, SETTING, Cause

from msprobe.capture.session import reset_session
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison
from msprobe.pytorch import PrecisionDebugger

Programs = dict[str, tuple[Any, dict[str, Any]]]
PROGRAMS: Final[Programs] = {
    "vit": (loops.train_vit, loops.VIT),
    "gan": (loops.train_gan, loops.GAN),
    "distill": (loops.train_distilled, loops.DISTILL),
    "hf": (trainers.train_hf, trainers.HF),
    "accelerate": (trainers.train_accelerate, trainers.ACCELERATE),
    "lightning": (trainers.train_lightning, trainers.LIGHTNING),
    "ranks": (trainers.run_rank, trainers.RANKS),
}
OF_RANKS: Final = {
    "ranks",
    *(program for each in (fourth, fifth, sixth, seventh, ninth) for program in each.OF_RANKS),
}


Pair = tuple[str, dict[str, Any], dict[str, Any]]

CAUSES: Final = [
    # plain loop
    Cause("vit", {"amsgrad": True}, SETTING, r"amsgrad is True"),
    Cause("vit", {"decay_all": False}, SETTING, r"weight_decay"),
    Cause("vit", {"max_lr": 5e-3}, ("schedule", *SETTING), r"max_lr|learning rate|lr is"),
    Cause("vit", {"pct_start": 0.2}, ("schedule",), r"OneCycle|learning rate|total_steps"),
    Cause("vit", {"schedule_each": 2}, ("schedule",), r"ahead|twice|learning rate|2 times"),
    Cause("vit", {"mean": False}, ("gradient", "call"), r"2|div|micro batch"),
    Cause("vit", {"accumulate": 3}, ("data",), r"3 micro batches"),
    Cause("vit", {"max_norm": 0.5}, ("clipping",), r"0\.5"),
    Cause("vit", {"clip_value": 0.01}, ("clipping",), r"clip_grad_value|value"),
    Cause("vit", {"clip_skips": (1,)}, ("clipping",), r"step 1.*clip|clip.*step 1"),
    Cause("vit", {"unscale": False}, ("gradient", "clipping"), r"unscale|512", base={"scaler": True}),
    Cause("vit", {"frozen": ("token",)}, ("mode",), r"token is frozen"),
    Cause("vit", {"frozen": ("blocks.1.attn", "blocks.2.attn")}, ("mode",), r"blocks\.1\.attn.* frozen"),
    Cause("vit", {"keep": ("model", "schedule")}, ("optimizer_state",), r"lost|step count", base={"resume": 2}),
    Cause("vit", {"keep": ("model", "optimizer")}, ("schedule",), r"learning rate|step", base={"resume": 2, "steps": 4}),
    Cause("vit", {"shuffle_seed": 2}, ("data",), r"order|batch"),
    Cause("vit", {"extra_batch": True}, ("data",), r"order|ahead|batch"),
    Cause("vit", {"bad": 7}, ("data",), r"batch"),
    Cause("vit", {"noise_seed": 4}, ("random", "data"), r"(?i)numpy|batch"),
    Cause("vit", {"drop_last": False, "steps": 4}, ("data",), r"step 3.*2 samples|2 samples", base={"steps": 4}),
    Cause("vit", {"dropout": 0.1}, ("argument", "call", "random"), r"dropout", L0),
    Cause("vit", {"eval_in": 1}, ("mode",), r"eval", base={"dropout": 0.1}),
    Cause("vit", {"eval_in": 2}, ("mode",), r"blocks\.1 .*eval|eval.*blocks\.1", base={"dropout": 0.1, "eval_block": True}),
    Cause("vit", {"use_average": True}, ("parameters",), r"parameters.*step 2|step 2"),
    Cause("vit", {"average": 0.5}, ("argument",), r"0\.5|lerp|average", ("equal",)),
    Cause("vit", {"fail_at": 1}, ("incomplete",), r"Bus error"),
    Cause("vit", {"detach_at": 1}, ("gradient",), r"cleared|gradients"),
    Cause("vit", {"twice": True}, ("update",), r"twice"),
    Cause("vit", {"reset_at": 1}, ("parameters", "random"), r"head|generator"),
    Cause("vit", {"eps": 1e-3}, ("argument",), r"eps|norm2", L0),
    Cause("vit", {"gelu": "tanh"}, ("argument",), r"approximate|gelu|mlp", L0),
    Cause("vit", {"skipped": 1}, ("call", "different_programs"), r"blocks\.1|only the reference"),
    Cause("vit", {"pooled": True}, ("call",), r"mean|getitem|head", L0),
    Cause("vit", {"autocast": True}, ("precision",), r"autocast|bfloat16"),
    Cause("vit", {"dtype": torch.bfloat16}, ("precision",), r"bfloat16"),
    # two networks, two optimizers; a teacher
    Cause("gan", {"clears": False}, ("gradient",), r"cleared|sum", base={"detach": False}),
    Cause("gan", {"betas": (0.9, 0.9)}, SETTING, r"beta1 is 0\.9 .*0\.5"),
    Cause("gan", {"lr": 2e-3}, SETTING, r"RMSprop.*lr is 0\.002 .*0\.001"),
    Cause("gan", {"times": 2}, ("call", "update", "data"), r"twice|only the target|2 "),
    Cause("gan", {"slope": 0.1}, ("argument",), r"negative_slope|leaky_relu|LeakyReLU|2 is", L0),
    Cause("gan", {"seed": 3}, ("random",), r"generator"),
    Cause("gan", {"spectral": False}, ("call", "parameters", "different_programs"), r"(?i)spectral|parametrizations|original|only the reference|judge|0"),
    Cause("gan", {"smooth": 1.0}, ("argument", "data", "call"), r"0\.9|1|target|full_like|binary", L0),
    Cause("distill", {"squared": False}, ("call",), r"mul|temperature|4|loss", L0),
    Cause("distill", {"temperature": 3.0}, ("argument",), r"div|3|2", L0),
    Cause("distill", {"alpha": 0.4}, ("argument",), r"mul|0\.4|loss", L0),
    Cause("distill", {"teacher_eval": False}, ("mode", "random"), r"eval|train"),
    Cause("distill", {"nesterov": False}, SETTING, r"nesterov is False"),
    Cause("distill", {"gamma": 0.8}, ("schedule",), r"gamma|learning rate"),
    Cause("distill", {"tied": False}, ("parameters",), r"tied"),
    # libraries
    Cause("hf", {"arguments": {"lr_scheduler_type": "linear"}}, ("schedule",), r"learning rate|lr"),
    Cause("hf", {"arguments": {"adam_beta1": 0.8}}, SETTING, r"beta1 is 0\.8 .*0\.9"),
    Cause("hf", {"arguments": {"optim": "adafactor"}}, SETTING, r"Adafactor.*AdamW"),
    Cause("hf", {"arguments": {"max_grad_norm": 0.0}}, ("clipping",), r"clip"),
    Cause("hf", {"arguments": {"data_seed": 7}}, ("data",), r"order|batch"),
    Cause("hf", {"arguments": {"bf16": True}}, ("precision",), r"autocast|bfloat16"),
    Cause("hf", {"bad": 3}, ("data",), r"label|batch"),
    Cause("hf", {"dropout": 0.2}, ("argument", "call"), r"\bp\b|dropout|0\.2", ("unexplained",)),
    Cause("hf", {"frozen": "bert.encoder.layer.0"}, ("mode",), r"layer\.0.* frozen"),
    Cause("hf", {"resume": "optimizer.pt"}, ("optimizer_state", "schedule"), r"lost|step count|learning rate", base={"resume": ""}),
    Cause("hf", {"resume": "scheduler.pt"}, ("schedule", "optimizer_state"), r"learning rate|step|lost", base={"resume": ""}),
    Cause("hf", {"resume": "rng_state.pth"}, ("random",), r"generator", base={"resume": ""}),
    Cause("accelerate", {"clips": False}, ("clipping",), r"clip"),
    Cause("accelerate", {"power": 2.0}, ("schedule",), r"power|learning rate"),
    Cause("accelerate", {"prepared": False}, ("schedule",), r"learning rate|ahead|twice|times"),
    Cause("accelerate", {"skipped": 1}, ("data",), r"batch|order"),
    Cause("accelerate", {"precision": "bf16"}, ("precision",), r"autocast|bfloat16"),
    Cause("accelerate", {"kind": "NAdam"}, SETTING, r"NAdam.*Adafactor"),
    Cause("lightning", {"kind": "value"}, ("clipping",), r"clip|value"),
    Cause("lightning", {"rho": 0.95}, SETTING, r"rho is 0\.95 .*0\.9"),
    Cause("lightning", {"stalls": True}, ("gradient", "update"), r"net\.0|no gradient|\b0\.(weight|bias)|not updated"),
    Cause("lightning", {"averaged": True}, ("mode",), r"eval"),
    Cause("lightning", {"bad": 5}, ("data",), r"batch"),
    Cause("lightning", {"seed": 2}, ("random",), r"generator"),
    # ranks
    Cause("ranks", {"sums": False}, ("communication", "call"), r"all_reduce|SumForward"),
    Cause("ranks", {"halves": False}, ("communication", "call", "gradient"), r"all_reduce|SumBackward|gradient"),
    Cause("ranks", {"group": 1}, ("communication",), r"group|ranks?"),
    Cause("ranks", {"group": 2}, ("communication",), r"group|ranks?", base={"world": 4}),
    Cause("ranks", {"weights": (1.0, 0.5)}, ("call", "argument"), r"mul|rank 1|0\.5", L0, base={"kind": "data"}),
    Cause("ranks", {"seed": 5}, ("data",), r"batch|input", base={"kind": "data"}),
    Cause("ranks", {"exits": (1, 1)}, ("incomplete",), r"bad value"),
]  # fmt: skip

# program, options of target, options of reference
PAIRS: Final[list[Pair]] = [
    ("vit", {"threads": 2}, {}),
    ("vit", {"by_hand": True}, {}),
    ("vit", {"unfolded": True}, {}),
    ("vit", {"checkpointing": True}, {}),
    ("vit", {"channels_last": True}, {}),
    ("vit", {"dtype": torch.bfloat16, "steps": 1}, {"steps": 1}),
    ("vit", {"dtype": torch.float64, "steps": 2}, {"steps": 2}),
    ("vit", {"autocast": True, "steps": 1}, {"steps": 1}),
    ("vit", {"foreach": True}, {"foreach": False}),
    ("vit", {"fused": True}, {"foreach": False}),
    ("vit", {"split": 2}, {}),
    ("vit", {"accumulate": 1, "batch": 8}, {}),
    ("vit", {"resume": 2}, {}),
    ("vit", {"workers": 1}, {}),
    ("vit", {"set_to_none": False}, {}),
    ("vit", {"scaler": True}, {}),
    ("vit", {"compiled": True}, {}),
    ("vit", {"clip_value": 1e3, "max_norm": 1e9}, {"max_norm": 1e9}),
    ("hf", {"attention": "eager"}, {}),
    ("hf", {"arguments": {"optim": "adamw_torch"}}, {"arguments": {"optim": "adamw_torch_fused"}}),
    ("hf", {"arguments": {"gradient_checkpointing": True}}, {}),
    ("hf", {"arguments": {"dataloader_num_workers": 1}}, {}),
    ("hf", {"arguments": {"seed": 42, "logging_strategy": "steps", "logging_steps": 1}}, {}),
    ("accelerate", {"attention": "eager"}, {}),
    ("accelerate", {"accumulate": 1, "batch": 4}, {}),
    ("lightning", {"clip": 1e6}, {"clip": 2e6}),
    ("ranks", {"kind": "data", "broadcast": False}, {"kind": "data"}),
]  # fmt: skip


class Recorder:
    """Records each program with the same options once."""

    def __init__(self, folder: Path, level: str, task: str, programs: Programs) -> None:
        self._folder, self._level, self._task = folder, level, task
        self._programs = programs
        self._count = 0
        self._known: dict[str, Path] = {}

    def record(self, program: str, options: dict[str, Any]) -> Path:
        """Run a program, and return what it recorded."""
        key = f"{program} {sorted(options.items())}"
        if key not in self._known:
            self._known[key] = self._record(program, options)
        return self._known[key]

    def _record(self, program: str, options: dict[str, Any]) -> Path:
        self._count += 1
        place = self._folder / str(self._count)
        place.mkdir()
        run, known = self._programs[program]
        assert set(options) <= set(known), options
        o = SimpleNamespace(**(known | options))
        reset_session()
        with trainers.quiet():
            torch.set_num_threads(1)
            if program in OF_RANKS:
                trainers.train_ranks(run, place, o, self._task, self._level)
            else:
                debugger = PrecisionDebugger(
                    dump_path=str(place / "dump"), task=self._task, level=self._level
                )
                run(debugger, place, o)
        reset_session()
        return place / "dump"

    def compare(self, program: str, target: dict[str, Any], reference: dict[str, Any]) -> Any:
        """Return the summary of a comparison."""
        sides = self.record(program, target), self.record(program, reference)
        return run_comparison(*sides, CompareOptions()).summary


@cache
def wanted(only: str | None, words: str) -> bool:
    return only is None or re.search(only, words) is not None


def score_causes(
    recorder: Recorder,
    level: str,
    only: str | None,
    *,
    every: bool,
    causes: Sequence[Cause] = CAUSES,
) -> None:
    total = classes = sentences = 0
    for cause in causes:
        name = f"{cause.program} {cause.change}"
        if not wanted(only, name):
            continue
        verdict = recorder.compare(cause.program, cause.base | cause.change, cause.base)["verdict"]
        has_class = verdict["class"] in cause.classes + (cause.modules if level == "L0" else ())
        is_true = re.search(cause.words, verdict["sentence"]) is not None
        total, classes, sentences = total + 1, classes + has_class, sentences + is_true
        if every or not (has_class and is_true):
            marks = "".join("ny"[each] for each in (has_class, is_true))
            print(f"  {marks} {name}: {verdict['sentence']} ({verdict['confidence']})", flush=True)
    print(f"{level} causes: class right {classes}, first line true {sentences} of {total}")


def score_pairs(
    recorder: Recorder, level: str, only: str | None, *, every: bool, pairs: Sequence[Pair] = PAIRS
) -> None:
    total = blamed = proved = 0
    for program, target, reference in pairs:
        name = f"{program} {target} {reference}"
        if not wanted(only, name):
            continue
        summary = recorder.compare(program, target, reference)
        verdict = summary["verdict"]
        is_proved = verdict["class"] in ("equal", "rounding", "precision")
        is_proved = is_proved and verdict["confidence"] == "proved"
        culprits = [each["row"] for each in summary["introduced"]]
        total, blamed, proved = total + 1, blamed + bool(culprits), proved + is_proved
        if every or culprits or not is_proved:
            print(f"  {name}: {verdict['sentence']} ({verdict['confidence']}) {culprits[:3]}")
    print(f"{level} pairs: a culprit in {blamed}, proved {proved} of {total}")


SETS: Final = {
    "third": (PROGRAMS, CAUSES, PAIRS),
    "fourth": (fourth.PROGRAMS, fourth.CAUSES, fourth.PAIRS),
    "fifth": (fifth.PROGRAMS, fifth.CAUSES, fifth.PAIRS),
    "sixth": (sixth.PROGRAMS, sixth_causes.CAUSES, sixth_causes.PAIRS),
    "seventh": (seventh.PROGRAMS, seventh_causes.CAUSES, seventh_causes.PAIRS),
    "eighth": (eighth.PROGRAMS, eighth.CAUSES, eighth.PAIRS),
    "ninth": (ninth.PROGRAMS, ninth_causes.CAUSES, ninth_causes.PAIRS),
    "tenth": (tenth.PROGRAMS, tenth.CAUSES, tenth.PAIRS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="regular expression of names")
    parser.add_argument("--levels", nargs="+", default=["mix", "L1", "L0"])
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--every", action="store_true", help="print the right ones, too")
    parser.add_argument("--set", choices=SETS, default="third", help="when it was written")
    parser.add_argument("--part", choices=("causes", "pairs"))
    args = parser.parse_args()
    programs, causes, pairs = SETS[args.set]
    for level in args.levels:
        with TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder), level, args.task, programs)
            if args.part != "pairs":
                score_causes(recorder, level, args.only, every=args.every, causes=causes)
            if args.part != "causes":
                score_pairs(recorder, level, args.only, every=args.every, pairs=pairs)


if __name__ == "__main__":
    sys.exit(main())
