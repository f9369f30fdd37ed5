"""One package: its manifest, the rules it keeps, its bytes read and checked."""
