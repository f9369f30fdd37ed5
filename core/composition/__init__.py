"""From what is installed to a published generation: check, train the router, judge, write."""
