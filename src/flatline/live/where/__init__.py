"""From a stage that departs to the lines of code that made it."""
