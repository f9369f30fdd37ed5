"""The commands of `redhost`, one file per group; torch is imported only inside commands."""
