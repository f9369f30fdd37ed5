"""Where work runs: jobs as data, a pool that caches results, and engines that carry them out."""
