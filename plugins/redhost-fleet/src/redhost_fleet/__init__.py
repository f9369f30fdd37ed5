"""Many machines, one store: push, promote, follow, and roll back a generation that is worse."""
