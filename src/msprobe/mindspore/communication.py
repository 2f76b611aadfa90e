# SPDX-License-Identifier: Apache-2.0
"""The rank of this process."""

from __future__ import annotations

from mindspore.communication import GlobalComm, get_rank


def current_rank() -> int | None:
    """Return the rank in the world group, None before ``communication.init()``."""
    if not GlobalComm.INITED:
        return None
    return int(get_rank())
