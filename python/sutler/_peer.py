"""PyTorch's figures for `sutler demo`: the same data and transforms through `torch.utils.data.DataLoader`.

As many processes as there are jobs train at once, each with its part of the workers, since that is what several jobs
are without something that they share. Prints JSON: the figures, or why there are none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def _why_not(path: Path) -> str | None:
    """Why PyTorch cannot be measured here."""
    missing = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    if not path.is_dir():
        return "torchvision has no dataset for a manifest"
    return None


def _run_job(arguments: argparse.Namespace) -> None:
    """One job: says when its workers are there, waits for a line, and says when it is done."""
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
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(arguments.path), pipeline),
        batch_size=arguments.batch_size,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
    )
    # One epoch uncounted: PyTorch starts its workers in the first, and that is not what is compared here.
    for _ in loader:
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    samples = sum(len(labels) for _ in range(arguments.epochs) for _, labels in loader)
    print(json.dumps({"samples": samples, "torch": torch.__version__}), flush=True)


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if reason := _why_not(arguments.path):
        return {"absent": reason}
    workers = max(1, arguments.workers // arguments.jobs)
    command = [sys.executable, "-m", "sutler._peer", str(arguments.path), "--jobs", "1"]
    for name in ("pipeline", "size", "batch_size", "epochs"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    jobs = [
        subprocess.Popen(
            [*command, "--workers", str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(arguments.jobs)
    ]
    try:
        for job in jobs:
            if job.stdout is None or job.stdout.readline() != "ready\n":
                raise SystemExit("PyTorch's loader ended before its first epoch did")
        started = time.perf_counter()
        for job in jobs:
            if job.stdin is not None:
                job.stdin.write("go\n")
                job.stdin.flush()
        told = [json.loads(job.stdout.readline()) for job in jobs if job.stdout is not None]
        seconds = time.perf_counter() - started
    except BaseException:
        for job in jobs:
            job.kill()
        raise
    finally:
        for job in jobs:
            job.communicate()
    samples = sum(each["samples"] for each in told)
    return {
        "torch": told[0]["torch"],
        "per_s": samples / seconds,
        "samples": samples,
        "jobs": arguments.jobs,
        "workers": workers,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m sutler._peer", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--pipeline", choices=["train", "eval"], default="train")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="of all jobs together")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="1 is one of them, and waits for a line to begin")
    arguments = parser.parse_args()
    if arguments.jobs == 1:
        _run_job(arguments)
    else:
        json.dump(_measure(arguments), sys.stdout)


if __name__ == "__main__":
    main()
