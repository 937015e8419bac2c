"""One suite for two loaders: what ``torch.utils.data`` documents, asked of PyTorch's ``DataLoader`` and of ours.

Every test takes ``load``, which makes a loader of either class. Where Sutler means to do something else, the test asks
``differs("name")``, and ``differences.py`` says why under that name; all other assertions are the same for both.
"""
