"""The verbs `redhost revoke` and `redhost revoked`: lists of what is called back.

`redhost_revoke.lists` signs and verifies a list, `redhost_revoke.fetch` reads that of an index,
`redhost_revoke.known` keeps it in a home; the host itself enforces it. This module imports none.
"""
