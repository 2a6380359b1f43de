"""`flatline.Loop`: a training loop of the user's own under the checkup."""
