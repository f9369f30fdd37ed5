"""From installed packages to a published generation: check, train the router, judge, publish."""
