"""Every file in examples/ runs, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[3] / "examples"

#: What an example prints, and the package it needs.
EXPECTED = {
    "numpy_loop.py": ("numpy", r"stopped after 11 steps\ntrained 24 steps of 8 in an epoch, loss 1\.\d+\n"),
    "jax_loop.py": ("jax", r"epoch 0: loss 1\.\d+\nepoch 1: loss 1\.\d+\nepoch 2: loss 1\.\d+\n"),
    "torch_ddp.py": (
        "torch",
        r"(epoch [01]: 4 steps on each of 2 ranks.*\n){2}epoch 2: the remaining 3 steps, loss .*\n",
    ),
    "lightning_trainer.py": (
        "lightning",
        r"trained 24 steps here.*\ntrained 13 steps here.*\nresumed from step 11: .* without a stop: True\n",
    ),
    "transformers_trainer.py": (
        "transformers",
        r"trained 16 steps\n(.*\n)*resumed from step 5: .* without a stop: True\n",
    ),
    "search.py": (
        "numpy",
        r"(learning rate .* prepared by the other jobs\n){8}4800 samples served, \d+ prepared\n",
    ),
    "accelerate_loop.py": (
        "accelerate",
        r"epochs of 8, 8 and 8 steps\nonce more from step 2 of the second epoch: 6 steps\n",
    ),
}


def test_every_example_is_run_here() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    package, output = EXPECTED[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *(launch if name == "torch_ddp.py" else []), str(EXAMPLES / name)]
    settings = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
        "JAX_PLATFORMS": "cpu",
    }
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **settings},
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-8000:]}"
    assert re.search(output, ended.stdout), f"{ended.stdout}\n{ended.stderr[-8000:]}"
