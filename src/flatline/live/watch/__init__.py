"""`flatline.watch`: any PyTorch loop, heard from its model and its optimizer alone."""
