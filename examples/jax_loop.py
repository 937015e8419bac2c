"""A jitted training loop in JAX. Batches come by DLPack, so on a CPU nothing is copied."""

import jax
import jax.numpy as jnp
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - the usual name

CLASSES = 4

Parameters = dict[str, jax.Array]


def loss_of(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of a linear model of the mean colours."""
    scores = images.mean(axis=(2, 3)) @ parameters["weights"] + parameters["bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
    return -chosen.mean()


@jax.jit
def train_step(parameters: Parameters, images: jax.Array, labels: jax.Array) -> tuple[Parameters, jax.Array]:
    """One step of gradient descent."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
    return jax.tree.map(lambda value, slope: value - 0.5 * slope, parameters, gradients), loss


def main() -> None:
    """Trains for three epochs."""
    sutler.testing.make_photos("jax-photos", count=64, classes=CLASSES, longer_side=64)
    transform = T.Compose(
        [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    )
    photos = sutler.ImageFolder("jax-photos", transform=transform)
    # Batches of one size only: another one would be compiled anew.
    loader = sutler.Loader(photos, batch_size=8, shuffle=True, seed=1, drop_last=True, output="dlpack")
    parameters = {"weights": jnp.zeros((3, CLASSES)), "bias": jnp.zeros(CLASSES)}
    for epoch in range(3):
        for images, labels in loader:
            # Labels are int64, of which JAX keeps 32 bits unless told otherwise.
            labels = jnp.asarray(labels).astype(jnp.int32)
            parameters, loss = train_step(parameters, jax.dlpack.from_dlpack(images), labels)
        print(f"epoch {epoch}: loss {float(loss):.3f}")


if __name__ == "__main__":
    main()
