# SPDX-License-Identifier: Apache-2.0
"""See every call: APIs, modules, custom functions, kernels, and recomputed calls.

`function_mode` sees API calls, `module_hooks` modules, `autograd_functions` custom functions,
`kernels` operators; `mode_stack`, `dispatch_stack` and `code_swap` install and remove. `guard`
surrounds all of our own work, `tracing` says when to keep out.
"""
