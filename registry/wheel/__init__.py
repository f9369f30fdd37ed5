"""One wheel: an archive that is nothing but its members, what it may bring, who signed it."""
