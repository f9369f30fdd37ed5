"""Test tools: the certification kit, throw-away environments, fault injection."""
