"""redhost expert: sums from 2 to 20 on the tiny arithmetic backbone (data only)."""
