"""Leaves a training as it was, bit for bit, and shows that it did.

`Snapshot` follows everything that is reachable from some named roots (a trainer, an optimizer,
callbacks, data, reward functions) and keeps what can be kept. After it was put back, a digest of
all of it is compared with the one from before. What cannot be kept is named before anything is
tried.

`walk` and `callables` find, `keep`, `buffers`, `numbers` and `tensors` put back, `code` knows what
a function refers to, `belongs` whose something is, `tell` what is said of it.
"""
