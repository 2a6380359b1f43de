"""verl, recorded while it trains, and its engine under a checkup. verl itself is never required."""
