"""`redhost lab matched`: four ways to spend the same number of parameters on the same features.

Legend for shapes, here and in every file of `matched`: N rows (B in a batch), D features, E
experts, W hidden units, R rank, C labels, L_i labels of expert i, P trained parameters.
"""
