"""What counts a benchmark: harm with its correction, shares with their intervals; and `mutants`.

The benchmark of planted faults counts with it too. It lies in `bench/` of the repository and is not
installed.
"""
