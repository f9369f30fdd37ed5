"""Where work runs: jobs as data, the crew that keeps what is done, and engines that do it."""
