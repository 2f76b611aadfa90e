# SPDX-License-Identifier: Apache-2.0
"""Operators: facts about ``linear``, ``dropout``, ``all_reduce`` and others, in either framework.

`lookup.operator_of` finds an operator by the name of a record, `lookup.operator_named` by the class
of a module. `table` holds the facts, `operator` says what each of them means. How functions are
observed is a matter of the adapters. Imports nothing but modules beside the rooms.
"""
