"""A training loop in plain NumPy that is stopped in the middle of an epoch and goes on exactly there."""

import json
from pathlib import Path

import numpy as np
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - the usual name

CLASSES = 4
CHECKPOINT = Path("numpy-checkpoint.json")


def make_loader() -> sutler.Loader:
    """The same loader in both runs: what differs between them is in its state."""
    transform = T.Compose(
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    photos = sutler.ImageFolder("numpy-photos", transform=transform)
    return sutler.Loader(photos, batch_size=8, shuffle=True, seed=1, output="numpy")


def train_step(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
    """One step of softmax regression on the mean colours; changes the weights and returns the loss."""
    features = images.mean(axis=(2, 3))
    scores = features @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    error = chances - np.eye(CLASSES)[labels]
    weights -= 0.5 * features.T @ error / len(labels)
    return float(-np.log(chances[np.arange(len(labels)), labels]).mean())


def train(epochs: int, stop_after: int | None = None) -> None:
    """Trains up to an epoch, from the checkpoint if there is one."""
    loader = make_loader()
    weights, steps = np.zeros((3, CLASSES)), 0
    if CHECKPOINT.exists():
        saved = json.loads(CHECKPOINT.read_text())
        weights, steps = np.array(saved["weights"]), saved["steps"]
        loader.load_state_dict(saved["loader"])
    while loader.state_dict()["epoch"] < epochs:
        for images, labels in loader:
            loss = train_step(weights, images, labels)
            steps += 1
            if steps == stop_after:
                state = {"weights": weights.tolist(), "steps": steps, "loader": loader.state_dict()}
                CHECKPOINT.write_text(json.dumps(state))
                print(f"stopped after {steps} steps")
                return
    print(f"trained {steps} steps of {len(loader)} in an epoch, loss {loss:.3f}")


if __name__ == "__main__":
    sutler.testing.make_photos("numpy-photos", count=64, classes=CLASSES, longer_side=64)
    CHECKPOINT.unlink(missing_ok=True)
    train(epochs=3, stop_after=11)
    train(epochs=3)
