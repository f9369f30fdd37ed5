"""The laboratory: data, backbones and experiments."""
