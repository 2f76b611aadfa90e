# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks: messages of recorded calls, and which calls belong together.

`calls.communication_calls` reads the calls of one rank from its records; `matching.connect` says
which calls of different ranks are one communication. Pure functions. May import `dump/` and
`operators/`.
"""
