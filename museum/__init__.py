"""Real releases with real defects, each beside the release that mended it. See README.md."""
