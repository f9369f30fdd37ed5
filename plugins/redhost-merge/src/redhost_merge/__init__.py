"""The verb `redhost merge`: a composition, distilled into one expert of fixed cost.

`redhost_merge.distill` has the functions; this module imports none, since `--help` needs no torch.
"""
