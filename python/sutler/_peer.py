"""PyTorch's figures for `sutler demo`: the same data, workers and transforms through `torch.utils.data.DataLoader`.

Prints JSON: the figures, or `null` where PyTorch and torchvision are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def _measure(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if any(importlib.util.find_spec(name) is None for name in ("torch", "torchvision")):
        return None
    if not arguments.path.is_dir():
        return None  # a manifest: torchvision has no dataset for it
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    first: list[Any] = (
        [transforms.RandomResizedCrop(arguments.size), transforms.RandomHorizontalFlip()]
        if arguments.pipeline == "train"
        else [transforms.Resize(arguments.size * 8 // 7), transforms.CenterCrop(arguments.size)]
    )
    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    pipeline = transforms.Compose([*first, transforms.ToTensor(), normalize])
    dataset = datasets.ImageFolder(str(arguments.path), pipeline)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=arguments.batch_size,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
    )
    rates = []
    # One epoch more, uncounted: PyTorch starts its workers in the first, and that is not what is compared here.
    for epoch in range(arguments.epochs + 1):
        started = time.perf_counter()
        samples = sum(len(labels) for _, labels in loader)
        if epoch:
            rates.append(samples / (time.perf_counter() - started))
    return {"torch": torch.__version__, "per_s": statistics.median(rates), "workers": arguments.workers}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m sutler._peer", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--pipeline", choices=["train", "eval"], default="train")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    json.dump(_measure(parser.parse_args()), sys.stdout)


if __name__ == "__main__":
    main()
