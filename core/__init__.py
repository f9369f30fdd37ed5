"""What computes: backbone, bus, experts, routers, training, recompose, evaluate."""
