"""The benchmark: what flatline finds, what it misses, and how often it cries wolf.

A plan is a list of cells. A cell is one run, healthy or with planted faults, that is looked at
before, during and after it trains. `run_cells` makes them, `score` counts, `markdown` prints.

It is no part of what is installed; in a clone, `flatline bench` finds it (`flatline.cli.bench`).
"""
