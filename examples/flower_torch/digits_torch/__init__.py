"""A PyTorch app in the form of flwr new's."""
