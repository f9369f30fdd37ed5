"""Jobs: work as plain data, a pool that caches results, and engines that run the jobs."""
