"""The commands of `redhost`, a file for each group. torch is imported inside commands only."""
