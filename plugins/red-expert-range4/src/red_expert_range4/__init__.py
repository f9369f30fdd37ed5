"""redhost expert: sums from 61 to 80 on the tiny arithmetic backbone (data only)."""
