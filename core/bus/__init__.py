"""The neural bus and its equations: norm → router → residual sum → shared classifier (`bus.py`)."""
