"""From a run, a log or a live trainer to a report: every hypothesis tested, ranked, reported."""
