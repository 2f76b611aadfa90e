# SPDX-License-Identifier: Apache-2.0
"""Code compiled into MindSpore's graphs that hands over the values of cells, and its receivers.

`observer` puts it in and takes it out. Into a graph go `constructs` and `optimizers`, made of
`forwards`, `gradients`, `delivery` and `walk`; from a running graph values come to `sink`, which
knows nothing of sessions, and `records` makes records of them. Graphs of accelerators cannot call
Python: `tensor_dump` has them write files instead.
"""
