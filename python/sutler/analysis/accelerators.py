"""Accelerators that are emulated by their published step times, and what a run must reach to pass with them.

The figures are those of MLPerf Storage, versions 1.0 and 2.0: its configuration files give, for each workload and
accelerator, the samples in a batch, the seconds of a step, and the utilisation below which a result does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Where the figures stand.
SOURCE = "MLPerf Storage v1.0/v2.0, mlcommons/storage, configs/dlio/workload/"

#: A dataset must be so many times as large as the memory of the hosts, or the page cache serves what storage should.
DATASET_TO_MEMORY = 5.0


@dataclass(frozen=True)
class Published:
    """One workload on one accelerator."""

    name: str
    batch_size: int
    step_seconds: float
    pass_line: float

    @property
    def source(self) -> str:
        """Which file says so."""
        return f"{SOURCE}{self.name.replace('-', '_')}.yaml"


#: By name.
ACCELERATORS = {
    published.name: published
    for published in (
        Published("unet3d-a100", 7, 0.636, 0.90),
        Published("unet3d-h100", 7, 0.323, 0.90),
        Published("resnet50-a100", 400, 0.435, 0.90),
        Published("resnet50-h100", 400, 0.224, 0.90),
        Published("cosmoflow-a100", 1, 0.00551, 0.70),
        Published("cosmoflow-h100", 1, 0.00350, 0.70),
    )
}


def accelerator(name: str) -> Published:
    """The accelerator of that name.

    Raises:
        TypeError: That is no name.
        ValueError: There is none; the message lists those there are.
    """
    if not isinstance(name, str):
        raise TypeError(f"accelerator should be a name, one of {', '.join(ACCELERATORS)}, got {name!r}")
    found = ACCELERATORS.get(name.lower().replace("_", "-"))
    if found is None:
        raise ValueError(
            f"there are no published figures for the accelerator {name!r}; there are for {', '.join(ACCELERATORS)}. "
            f"For any other give the time of a step"
        )
    return found
