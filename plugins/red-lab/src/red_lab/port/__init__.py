"""Experts ported to another backbone, compared with retraining and with no expert."""
