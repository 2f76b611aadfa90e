# SPDX-License-Identifier: Apache-2.0
"""Gradients where they cross the boundary of a call, and those of parameters.

`quick_taps` is the entry: it finds the nodes of the user's graph to hook, or leaves that to
`gradient_taps`; `graph_search` searches the graph for both, `node_taps` has the hooks. Nothing is
added to the graph.
"""
