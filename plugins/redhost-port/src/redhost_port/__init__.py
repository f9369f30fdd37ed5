"""The verbs `redhost port` and `redhost migrate`: experts behind a map, on another backbone.

`redhost_port.porting` has the functions for one expert, `redhost_port.migrate` those for a
composition; this module imports none, since `--help` needs no torch.
"""
