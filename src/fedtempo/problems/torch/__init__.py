"""PyTorch's modules as problems."""
