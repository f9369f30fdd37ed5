"""Many machines, one store: push, promote, follow, and go back when it is worse."""
