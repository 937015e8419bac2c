"""What native pipelines draw, against what torchvision draws: the same distribution, parameter by parameter.

The native side is `sutler._sutler.draw(ops_json, width, height, seed, epoch, sample)`: a JSON list with one
object per operation, its name under "op" and what was drawn for it:

- random_resized_crop, random_crop: top, left, height, width (of the bordered image for a crop with padding)
- random_horizontal_flip, random_vertical_flip, random_grayscale: applied
- color_jitter: order (0 to 3 for brightness, contrast, saturation, hue) and brightness, contrast, saturation,
  hue, null where not asked for
- gaussian_blur: sigma
- rand_augment, trivial_augment_wide: chosen, a list of name and magnitude
- random_erasing: applied, and if so top, left, height, width

Two samples of the same distribution differ, and a test that rejects one pair in twenty would fail all the
time. The seeds are fixed and the level is one in a million: a failure is a difference, and the number of
samples makes a shift of ten percent one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import pytest
from sutler import transforms as T  # noqa: N812 - as users write it

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")
native = pytest.importorskip("sutler._sutler")
if not hasattr(native, "draw"):
    pytest.skip("the native module does not draw yet", allow_module_level=True)

SAMPLES = 4000
LEVEL = 1e-6
WIDTH, HEIGHT = 500, 375


def native_draws(transform: T.Transform, width: int = WIDTH, height: int = HEIGHT) -> list[dict[str, Any]]:
    ops = json.dumps(transform.ops)
    return [json.loads(native.draw(ops, width, height, 20, 3, sample))[0] for sample in range(SAMPLES)]


def torchvision_draws(transform: Any, width: int = WIDTH, height: int = HEIGHT) -> list[dict[str, Any]]:
    torch.manual_seed(20)
    image = torch.empty((3, height, width), dtype=torch.uint8)
    return [transform.make_params([image]) for _ in range(SAMPLES)]


def assert_same_numbers(ours: Iterable[float], theirs: Iterable[float], what: str) -> None:
    """The two-sample test of Kolmogorov and Smirnov."""
    first, second = np.sort(np.fromiter(ours, float)), np.sort(np.fromiter(theirs, float))
    points = np.concatenate([first, second])
    below = (np.searchsorted(sample, points, side="right") / len(sample) for sample in (first, second))
    distance = float(np.abs(np.subtract(*below)).max())
    # Smirnov's limit for large samples, solved for the distance; with ties it errs on the side of passing.
    limit = math.sqrt(-math.log(LEVEL / 2) / 2 * (1 / len(first) + 1 / len(second)))
    assert distance <= limit, f"{what}: the distributions are {distance:.3f} apart, {limit:.3f} is chance"


def assert_same_counts(ours: Iterable[Hashable], theirs: Iterable[Hashable], what: str) -> None:
    """The two-sample test of chi square."""
    first, second = Counter(ours), Counter(theirs)
    assert first.total() == second.total()
    values = sorted(set(first) | set(second), key=repr)
    statistic = sum((first[value] - second[value]) ** 2 / (first[value] + second[value]) for value in values)
    limit = chi_square_limit(len(values) - 1)
    assert statistic <= limit, (
        f"{what}: chi square is {statistic:.1f}, {limit:.1f} is chance; {first} against {second}"
    )


def chi_square_limit(freedom: int) -> float:
    """Where one in a million lies, after Wilson and Hilferty: the cube root is nearly normal."""
    if freedom == 0:
        return 0.0
    normal = 4.753  # the normal distribution has a millionth above it
    ninth = 2 / (9 * freedom)
    return freedom * (1 - ninth + normal * math.sqrt(ninth)) ** 3


def test_the_tests_tell_distributions_apart() -> None:
    generator = np.random.default_rng(1)
    even, again, shifted = (
        generator.random(SAMPLES),
        generator.random(SAMPLES),
        generator.random(SAMPLES) * 1.1,
    )
    assert_same_numbers(even, again, "even")
    with pytest.raises(AssertionError, match="apart"):
        assert_same_numbers(even, shifted, "shifted")
    assert_same_counts(even < 0.5, again < 0.5, "even")
    with pytest.raises(AssertionError, match="chi square"):
        assert_same_counts(even < 0.5, shifted < 0.44, "shifted")


@pytest.mark.parametrize(
    ("width", "height"), [(500, 375), (375, 500), (64, 64), (1000, 40), (40, 1000), (3, 2)]
)
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.35, 0.6)])
def test_random_resized_crop(width: int, height: int, scale: tuple[float, float]) -> None:
    ours = native_draws(T.RandomResizedCrop(224, scale), width, height)
    theirs = torchvision_draws(v2.RandomResizedCrop(224, scale), width, height)
    for name in ("top", "left", "height", "width"):
        assert_same_numbers((draw[name] for draw in ours), (draw[name] for draw in theirs), name)
    for what, measure in (
        ("area", lambda draw: draw["height"] * draw["width"]),
        ("ratio", lambda draw: draw["width"] / draw["height"]),
        ("right", lambda draw: draw["left"] + draw["width"]),
        ("bottom", lambda draw: draw["top"] + draw["height"]),
    ):
        assert_same_numbers(map(measure, ours), map(measure, theirs), what)
    assert all(
        draw["left"] + draw["width"] <= width and draw["top"] + draw["height"] <= height for draw in ours
    )


@pytest.mark.parametrize(
    ("width", "height", "arguments"),
    [
        (40, 36, {}),
        (32, 32, {"padding": 4}),
        (32, 32, {"padding": (1, 2, 3, 4)}),
        (20, 50, {"pad_if_needed": True}),
    ],
)
def test_random_crop(width: int, height: int, arguments: dict[str, Any]) -> None:
    ours = native_draws(T.RandomCrop(32, **arguments), width, height)
    theirs = torchvision_draws(v2.RandomCrop(32, **arguments), width, height)
    for name in ("top", "left"):
        assert_same_counts((draw[name] for draw in ours), (draw[name] for draw in theirs), name)
    assert {(draw["height"], draw["width"]) for draw in ours} == {(32, 32)}


@pytest.mark.parametrize("kind", [T.RandomHorizontalFlip, T.RandomVerticalFlip, T.RandomGrayscale])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_coins(kind: Callable[[float], T.Transform], p: float) -> None:
    torch.manual_seed(20)
    assert_same_counts(
        (draw["applied"] for draw in native_draws(kind(p))),
        (bool(torch.rand(1) < p) for _ in range(SAMPLES)),
        "applied",
    )


def test_color_jitter() -> None:
    arguments: dict[str, Any] = {"brightness": 0.4, "contrast": (0.2, 0.9), "saturation": 2.0, "hue": 0.1}
    ours = native_draws(T.ColorJitter(**arguments))
    theirs = torchvision_draws(v2.ColorJitter(**arguments))
    for name in arguments:
        assert_same_numbers((draw[name] for draw in ours), (draw[f"{name}_factor"] for draw in theirs), name)
    assert_same_counts(
        (tuple(draw["order"]) for draw in ours), (tuple(draw["fn_idx"].tolist()) for draw in theirs), "order"
    )


def test_color_jitter_draws_only_what_was_asked_for() -> None:
    ours = native_draws(T.ColorJitter(hue=0.2))
    assert {draw["brightness"] for draw in ours} == {None}
    assert len({draw["hue"] for draw in ours}) > SAMPLES * 0.99


def test_gaussian_blur() -> None:
    ours = native_draws(T.GaussianBlur(5, (0.1, 2.0)))
    theirs = torchvision_draws(v2.GaussianBlur(5, (0.1, 2.0)))
    assert_same_numbers((draw["sigma"] for draw in ours), (draw["sigma"][0] for draw in theirs), "sigma")


def recorded_choices(transform: Any, width: int, height: int) -> list[list[tuple[str, float]]]:
    """The operations that one of torchvision's policies decides on, with their magnitudes."""
    recorded: list[tuple[str, float]] = []

    def record(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        recorded.append((name, magnitude))
        return image

    transform._apply_image_or_video_transform = record
    image = torch.empty((3, height, width), dtype=torch.uint8)
    torch.manual_seed(20)
    runs = []
    for _ in range(SAMPLES):
        recorded.clear()
        transform(image)
        runs.append(list(recorded))
    return runs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (T.RandAugment(), v2.RandAugment()),
        (T.RandAugment(3, 15, 20), v2.RandAugment(3, 15, 20)),
        (T.TrivialAugmentWide(), v2.TrivialAugmentWide()),
    ],
    ids=["RandAugment", "RandAugment(3, 15, 20)", "TrivialAugmentWide"],
)
def test_policies(ours: T.Transform, theirs: Any) -> None:
    expected = recorded_choices(theirs, WIDTH, HEIGHT)
    runs = [
        [(choice["name"], choice["magnitude"]) for choice in draw["chosen"]] for draw in native_draws(ours)
    ]
    assert {len(run) for run in runs} == {len(run) for run in expected}
    for position in range(len(expected[0])):
        assert_same_counts(
            (run[position][0] for run in runs), (run[position][0] for run in expected), f"name {position}"
        )
    drawn, wanted = ([choice for run in some for choice in run] for some in (runs, expected))
    for name in sorted({name for name, _ in wanted}):
        # Both sides read magnitudes from a table; the last bit may differ and should not count.
        magnitudes, expected_magnitudes = (
            np.round([magnitude for each, magnitude in some if each == name], 4) for some in (drawn, wanted)
        )
        entries = table(theirs, name)
        assert all(np.isclose(abs(magnitude), entries, atol=1e-4).any() for magnitude in magnitudes), name
        assert_same_numbers(magnitudes, expected_magnitudes, name)


def table(policy: Any, name: str) -> Any:
    """The magnitudes that one of torchvision's policies has for an operation."""
    magnitudes = policy._AUGMENTATION_SPACE[name][0](policy.num_magnitude_bins, HEIGHT, WIDTH)
    return np.zeros(1) if magnitudes is None else np.asarray(magnitudes, dtype=float)


@pytest.mark.parametrize(("width", "height"), [(224, 224), (300, 20), (2, 2)])
@pytest.mark.parametrize("arguments", [{"p": 0.25}, {"p": 1.0, "scale": (0.1, 0.9), "ratio": (0.5, 2.0)}])
def test_random_erasing(width: int, height: int, arguments: dict[str, Any]) -> None:
    ours = native_draws(T.RandomErasing(**arguments), width, height)
    transform = v2.RandomErasing(**arguments)
    # torchvision gives up silently where no rectangle fits, which leaves the image as it is: not applied.
    params = torchvision_draws(transform, width, height)
    coins = torch.rand(SAMPLES) < transform.p
    theirs = [
        draw if coin and draw["v"] is not None else None for draw, coin in zip(params, coins, strict=True)
    ]
    assert_same_counts((draw["applied"] for draw in ours), (draw is not None for draw in theirs), "applied")
    erased, expected = (
        [draw for draw in ours if draw["applied"]],
        [draw for draw in theirs if draw is not None],
    )
    if not expected:
        return
    for name, key in (("top", "i"), ("left", "j"), ("height", "h"), ("width", "w")):
        assert_same_numbers((draw[name] for draw in erased), (draw[key] for draw in expected), name)


def test_a_draw_depends_on_seed_epoch_and_sample_alone() -> None:
    ops = json.dumps(T.RandomResizedCrop(224).ops)

    def draw(seed: int, epoch: int, sample: int) -> str:
        return str(native.draw(ops, WIDTH, HEIGHT, seed, epoch, sample))

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)}) == 4


def test_neighbouring_samples_and_epochs_draw_independently() -> None:
    ops = json.dumps(T.ColorJitter(brightness=0.5).ops)

    def factors(epoch: int, samples: Iterable[int]) -> Any:
        return np.array(
            [
                json.loads(native.draw(ops, WIDTH, HEIGHT, 20, epoch, sample))[0]["brightness"]
                for sample in samples
            ]
        )

    first = factors(0, range(SAMPLES))
    for what, second in (
        ("epochs", factors(1, range(SAMPLES))),
        ("samples", factors(0, range(1, SAMPLES + 1))),
    ):
        # The correlation of independent draws is normal with deviation 1 / sqrt(n).
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.9 / math.sqrt(SAMPLES), what
