"""One package: its manifest, the rules for it, and reading and checking its bytes."""
