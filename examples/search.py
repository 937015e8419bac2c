"""A hyper-parameter search: eight jobs on one machine, and one preparation of each sample for all of them.

`python examples/search.py` starts an agent and eight training processes that attach to it. Each has a learning rate of
its own, its own shuffling and its own pace; what one of them has prepared serves the others as well.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sutler
from sutler import transforms as T  # noqa: N812 - the usual name

CLASSES = 4
EPOCHS = 3
LEARNING_RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


def make_pictures(root: Path) -> None:
    """Pictures of noise; the colour of a class shines through."""
    rng = np.random.default_rng(0)
    colours = rng.uniform(-40, 40, (CLASSES, 3))
    for number in range(200):
        values = rng.normal(128, 40, (96, 96, 3)) + rng.normal(0, 20, 3) + colours[number % CLASSES]
        folder = root / f"class_{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = values.clip(0, 255).astype(np.uint8).tobytes()
        (folder / f"{number:03}.ppm").write_bytes(b"P6 96 96 255\n" + pixels)


def train(agent: str, number: int) -> None:
    """One job: a linear classifier on the mean colours of a picture's parts."""
    transform = T.Compose(
        [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    loader = sutler.Loader(
        sutler.ImageFolder("search-photos", transform=transform),
        batch_size=20,
        shuffle=True,
        seed=number,
        output="numpy",
        agent=agent,
        order="shared",
        job_name=f"search-{number}",
    )
    weights = np.zeros((3 * 4 * 4, CLASSES), np.float32)
    for _ in range(EPOCHS):
        for images, labels in loader:
            features = (
                images.reshape(len(images), 3, 4, 16, 4, 16).mean((3, 5)).reshape(len(images), -1) - 0.5
            )
            scores = np.exp(features @ weights)
            scores /= scores.sum(1, keepdims=True)
            loss = -np.log(scores[np.arange(len(labels)), labels] + 1e-9).mean()
            scores[np.arange(len(labels)), labels] -= 1
            weights -= LEARNING_RATES[number] * features.T @ scores / len(labels)
    figures = loader.stats()
    saved = figures["served"]["augmented"]
    print(json.dumps({"loss": float(loss), "samples": figures["samples"], "saved": saved}))


def main() -> None:
    """Starts the agent and the jobs, and prints what each of them saved."""
    make_pictures(Path("search-photos"))
    with tempfile.TemporaryDirectory() as folder:
        socket = str(Path(folder) / "agent.sock")
        command = [sys.executable, "-m", "sutler", "serve", "--socket", socket, "--window", "0.1", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()  # it is ready
            jobs = [
                subprocess.Popen(
                    [sys.executable, __file__, socket, str(number)], stdout=subprocess.PIPE, text=True
                )
                for number in range(len(LEARNING_RATES))
            ]
            results = [json.loads(job.communicate()[0]) for job in jobs]
            agent.terminate()
    for rate, result in zip(LEARNING_RATES, results, strict=True):
        share = result["saved"] / result["samples"]
        print(f"learning rate {rate:<6} loss {result['loss']:.2f}, {share:.0%} prepared by the other jobs")
    samples, saved = (sum(result[key] for result in results) for key in ("samples", "saved"))
    print(f"{samples} samples served, {samples - saved} prepared")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], int(sys.argv[2]))
    else:
        main()
