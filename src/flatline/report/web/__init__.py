"""The pages, live from run directories and journals, on this machine only."""
