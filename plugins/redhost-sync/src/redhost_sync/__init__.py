"""The verbs `redhost sync` and `redhost export-wheels`: a project rebuilt from its lock.

`redhost_sync.locks` reads what the locks name, `redhost_sync.sources` where wheels come from,
`redhost_sync.synchronise` has the order of all steps; this module imports none.
"""
