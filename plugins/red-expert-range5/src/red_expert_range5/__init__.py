"""redhost expert: sums from 81 to 100 on the tiny arithmetic backbone (data only)."""
