"""`flatline.attach`: records a live TRL trainer while it trains."""
