"""What tests are made with: the certification kit, throw-away environments, fault injection."""
