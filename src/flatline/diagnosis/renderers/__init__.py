"""One answer, shown where it is read: a terminal, a notebook, CI, a tracker."""
