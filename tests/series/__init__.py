"""What is told of a log's numbers, one file a mechanism, on made series: what a kept log is told is
in the golden corpus."""
