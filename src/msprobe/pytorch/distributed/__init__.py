# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks, seen and recorded.

`process_groups` wraps the functions of ``torch.distributed``, `functional_collectives` the
functional ones; `pending_work` knows when a buffer may be read, `collectives` makes the records.
"""
