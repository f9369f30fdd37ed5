"""redhost expert: sums from 41 to 60 on the tiny arithmetic backbone (data only)."""
