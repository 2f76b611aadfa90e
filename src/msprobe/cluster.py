# SPDX-License-Identifier: Apache-2.0
"""`cluster`: a dask cluster that does work of this program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msprobe.errors import UnsupportedError, UsageError
from msprobe.plain_text import reason

CONNECT_S: Final = 10
"""How long a scheduler may take to answer."""
# Work that ends with its worker is given to another one.
_RETRIES: Final = 3

Item = TypeVar("Item")
Result = TypeVar("Result")


class Cluster:
    """A connected cluster; its workers have the same version of msprobe, and see the same files.

    Attributes:
        workers: number of its workers.
    """

    def __init__(self, client: Any, address: str) -> None:
        """Take a connected client of the package `distributed`."""
        self._client = client
        self._address = address
        self.workers = len(client.scheduler_info()["workers"])

    def finished(
        self, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with what `work` returned for it, as they end.

        Args:
            work: a function that can be pickled.
            items: what can be pickled.

        Raises:
            UsageError: the cluster gives up.
        """
        distributed = _distributed()
        gave_up = (
            distributed.KilledWorker,
            distributed.client.FutureCancelledError,
            CancelledError,
            ImportError,
            OSError,
        )
        running = {
            self._client.submit(work, item, pure=False, retries=_RETRIES): item for item in items
        }
        try:
            for future in distributed.as_completed(list(running), loop=self._client.loop):
                yield running.pop(future), future.result()
        except gave_up as exc:
            raise UsageError(
                f"the cluster at {self._address} gave up: {exc} (its workers need the same version "
                f"of msprobe and the files under the same paths)"
            ) from exc


@contextmanager
def cluster(address: str) -> Iterator[Cluster]:
    """Connect to a cluster.

    Args:
        address: of its scheduler, ``tcp://host:8786``.

    Raises:
        UnsupportedError: the package is not installed.
        UsageError: the scheduler does not answer, or has no workers.
    """
    distributed = _distributed()
    try:
        # A client that fails at this leaves a thread, which ends with a traceback.
        distributed.comm.resolve_address(address)
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as exc:  # a timeout is an OSError
        raise UsageError(
            f"no dask scheduler answers at {address} within {CONNECT_S} s: {reason(exc)}"
        ) from exc
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError as exc:
            raise UsageError(f"the dask scheduler at {address} has no workers") from exc
        yield Cluster(client, address)


def _distributed() -> Any:  # an optional package, and one without annotations
    try:
        return importlib.import_module("distributed")
    except ImportError as exc:
        raise UnsupportedError(
            'a cluster needs the package "distributed"; pip install "msprobe[cluster]"'
        ) from exc
