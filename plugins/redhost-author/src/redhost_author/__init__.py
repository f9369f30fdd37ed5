"""What authors run besides `new-expert`, `train-expert` and `pack`, which redhost has itself.

This module imports nothing, since `--help` needs no torch.
"""
