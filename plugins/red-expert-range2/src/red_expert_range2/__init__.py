"""redhost expert: sums from 21 to 40 on the tiny arithmetic backbone (data only)."""
