"""Datasets that can only be gone through: what Sutler promises beyond PyTorch."""
