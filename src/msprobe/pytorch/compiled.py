# SPDX-License-Identifier: Apache-2.0
"""Run compiled code eagerly while capturing, so that its modules and APIs can be seen."""

from __future__ import annotations

import sys

import torch

from msprobe.capture.session import Session
from msprobe.config import CompileMode


def run_eagerly(session: Session) -> None:
    """Set torch's stance to eager until `stop`, if anything was compiled at all.

    Importing dynamo costs about a second, so it is only asked when it is loaded already. A stance
    that the user sets meanwhile is left alone.
    """
    if "torch._dynamo" not in sys.modules or session.config.compile is CompileMode.MODULES_ONLY:
        return
    from torch._dynamo import eval_frame  # noqa: PLC0415 - loaded already, see above

    if eval_frame._stance.stance != "default":
        session.account.note(f"compiled code ran under the stance {eval_frame._stance.stance!r}")
        return
    before = eval_frame._stance
    torch.compiler.set_stance("force_eager")
    ours = eval_frame._stance
    session.account.note("compiled code ran eagerly")

    def restore() -> None:
        if eval_frame._stance is ours:
            torch.compiler.set_stance(before.stance)

    session.undo.callback(restore)


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Return whether `module` is what ``torch.compile(model)`` returned."""
    return "torch._dynamo" in sys.modules and type(module).__name__ == "OptimizedModule"
