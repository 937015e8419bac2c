"""What the Python tests share."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - as users write it

#: Seconds that a thing of moments may take where the machine has much else to do. Only what hangs takes as long.
DEADLINE = 120.0

OP_SOURCE = Path(__file__).parents[2] / "crates" / "sutler-media" / "src" / "image" / "op.rs"


class OpSchema:
    """The fields of the native operations and their types, as `op.rs` declares them."""

    def __init__(self, source: str) -> None:
        source = re.sub(r"//.*", "", source)
        self.enums: dict[str, str] = {}
        for name, body in re.findall(r"pub enum (\w+) \{(.*?)\n\}", source, re.DOTALL):
            self.enums[name] = body
        self.ops = {
            re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): {
                field: kind.strip()
                for field, kind in re.findall(r"(\w+): ([^,{}\[]*(?:\[[^\]]*\])?[^,{}]*)", body)
            }
            for name, body in re.findall(r"(\w+) \{([^{}]*)\}", self.enums.pop("Op"))
        }

    def check(self, op: dict[str, Any]) -> None:
        """Fail unless the operation is one that the native module can read."""
        fields = self.ops[op["op"]]
        assert set(op) - {"op"} == set(fields), op
        for field, kind in fields.items():
            assert self.fits(op[field], kind), f"{op['op']}.{field} = {op[field]!r} is not a {kind}"

    def fits(self, value: Any, kind: str) -> bool:
        if wrapped := re.fullmatch(r"Option<(.*)>", kind):
            return value is None or self.fits(value, wrapped[1])
        if wrapped := re.fullmatch(r"Vec<(.*)>", kind):
            return isinstance(value, list) and all(self.fits(each, wrapped[1]) for each in value)
        if wrapped := re.fullmatch(r"\[(.*); (\d+)\]", kind):
            return (
                isinstance(value, list)
                and len(value) == int(wrapped[2])
                and all(self.fits(each, wrapped[1]) for each in value)
            )
        if kind in ("u8", "u32"):
            return type(value) is int and 0 <= value < 2 ** int(kind[1:])
        if kind == "f64":
            return type(value) in (int, float) and math.isfinite(value)
        if kind == "bool":
            return type(value) is bool
        variants = re.findall(r"(\w+)(?:\((.*?)\))?,", self.enums[kind])
        return any(self.fits(value, inner) if inner else value == name.lower() for name, inner in variants)


@pytest.fixture(scope="session")
def op_schema() -> OpSchema:
    return OpSchema(OP_SOURCE.read_text())


@pytest.fixture(scope="session")
def check_ops(op_schema: OpSchema) -> Callable[[list[dict[str, Any]]], None]:
    """Checks a list of operations against the native module's declaration of them."""

    def check(ops: list[dict[str, Any]]) -> None:
        for op in ops:
            op_schema.check(op)

    return check


@pytest.fixture
def picture() -> Any:
    """A small PIL image of noise."""
    numpy = pytest.importorskip("numpy")
    pillow = pytest.importorskip("PIL.Image")
    return pillow.fromarray(numpy.random.default_rng(0).integers(0, 256, (48, 60, 3), dtype=numpy.uint8))


@pytest.fixture(scope="session")
def run_ops() -> Callable[[list[dict[str, Any]], Any], Any]:
    """Runs operations as torchvision means them: each is made into the transform of its name again."""
    from sutler import transforms

    def run(ops: list[dict[str, Any]], image: Any) -> Any:
        for op in ops:
            arguments = dict(op)
            name = "".join(part.capitalize() for part in arguments.pop("op").split("_"))
            image = getattr(transforms, name)(**arguments)(image)
        return image

    return run


#: Not a multiple of any batch size or number of ranks in the tests, so that every last batch is incomplete.
PHOTOS = 41


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small photos in four classes, for all tests to read and none to change."""
    folder = tmp_path_factory.mktemp("photos")
    sutler.testing.make_photos(folder, PHOTOS, 4, longer_side=64)
    return folder


@pytest.fixture
def own_photos(tmp_path: Path) -> Path:
    """A folder of small photos that a test may spoil."""
    folder = tmp_path / "photos"
    sutler.testing.make_photos(folder, 12, 3, longer_side=48)
    return folder


@pytest.fixture(scope="session")
def augmented(photos: Path) -> sutler.ImageFolder:
    """The photos through random operations: whoever draws other numbers gets other bytes."""
    return sutler.ImageFolder(photos, T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip()]))


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own and fails if it does not end in time."""

    def run(
        code: str, *arguments: object, timeout: float = DEADLINE, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path_factory.mktemp("script") / "script.py"
        script.write_text(textwrap.dedent(code))
        command = [sys.executable, str(script), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture(scope="session")
def wait_until_gone() -> Callable[[list[int]], list[int]]:
    """Waits for processes to end and tells which of them did not."""

    def wait(pids: list[int]) -> list[int]:
        deadline = time.monotonic() + DEADLINE
        while (left := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    return wait


def _wait_for_children_to_end() -> None:
    """Waits for the workers of loaders that nobody uses any more, but that the garbage collector has not seen yet."""
    deadline = time.monotonic() + DEADLINE
    while children := multiprocessing.active_children():
        assert time.monotonic() < deadline, f"worker processes outlive their loader: {children}"
        gc.collect()
        time.sleep(0.02)


@pytest.fixture
def no_other_workers() -> Iterator[None]:
    """For tests that count processes: those of the tests before are gone, and this one has to leave none."""
    _wait_for_children_to_end()
    yield
    _wait_for_children_to_end()


def _shared_memory_of(pid: int) -> set[str]:
    """The named shared memory that a process has open or mapped."""
    names = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # one that was just closed
            names.add(os.readlink(descriptor))
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        names.update(line.split(maxsplit=5)[5:])
    return {name for name in names if name.startswith("/dev/shm/") and not name.endswith(" (deleted)")}


@pytest.fixture(scope="session")
def shared_memory_of() -> Callable[[int], set[str]]:
    """Tells which shared memory of a process has a name, by which it would outlive the process."""
    return _shared_memory_of
