"""Experts carried over to another backbone, against retraining them and against nothing."""
