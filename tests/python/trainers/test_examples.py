"""Every file in examples/ runs, and prints what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.python.trainers.conftest import ABORTED, Program, RunPrograms, run_command

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


def test_no_example_reads_the_photos_of_another() -> None:
    named = [set(re.findall(r'"([\w-]*photos)"', file.read_text())) for file in EXAMPLES.glob("*.py")]
    assert all(len(folders) == 1 for folders in named)
    assert len(set.union(*named)) == len(named)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path, run_programs: RunPrograms) -> None:
    package, output = EXPECTED[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    if package in ("accelerate", "lightning", "transformers"):
        (ended,) = run_programs([Program([EXAMPLES / name], tmp_path)])
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words: list[str | Path] = [*(launch if name == "torch_ddp.py" else []), EXAMPLES / name]
        ended = run_command(words, tmp_path)
        if ABORTED in ended.errors:
            ended = run_command(words, tmp_path)
    assert ended.code == 0, str(ended)
    assert re.search(output, ended.output), str(ended)
