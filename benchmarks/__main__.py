"""``python -m benchmarks``: one command per benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    accounting,
    agent,
    analyser,
    convergence,
    h200,
    images,
    jobs,
    kept,
    machine,
    memory,
    plan,
    python_cache,
    python_dataset,
    quality,
    reads,
    reports,
    slow_items,
    startup,
    streams,
    worker_memory,
    workloads,
)
from benchmarks.outcome import NameTakenError, document, folder_for, save
from benchmarks.worker import ContenderError

BENCHMARKS = {
    "images": images,
    "startup": startup,
    "memory": memory,
    "quality": quality,
    "h200": h200,
    "slow-items": slow_items,
    "python-dataset": python_dataset,
    "python-cache": python_cache,
    "worker-memory": worker_memory,
    "streams": streams,
    "jobs": jobs,
    "kept": kept,
    "plan": plan,
    "agent": agent,
    "reads": reads,
    "convergence": convergence,
    "workloads": workloads,
    "analyser": analyser,
    "accounting": accounting,
    "reports": reports,
}
#: Benchmarks whose samples are no photos.
WITHOUT_PHOTOS = {"slow-items", "streams", "worker-memory", "reads", "convergence", "workloads", "analyser"}


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure Sutler beside its peers."
    )
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, module in BENCHMARKS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        if name not in WITHOUT_PHOTOS:
            command.add_argument(
                "--data",
                type=Path,
                metavar="FOLDER",
                help="JPEGs, in class folders or not; generated ones by default",
            )
        module.add_arguments(command)
        command.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
        command.add_argument(
            "--save",
            metavar="NAME",
            help="keep the run in benchmarks/runs/DATE-NAME; name the machine, as in `2-cores`",
        )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Runs a benchmark and returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    arguments = parse(given)
    try:
        folder = None if arguments.save is None else folder_for(arguments.save)
        outcome = BENCHMARKS[arguments.benchmark].measure(arguments)
    except (NameTakenError, ContenderError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(outcome.summary, flush=True)
    if arguments.json is None and folder is None:
        return 0
    facts = document(outcome, machine.command(given))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")
    if folder is not None:
        save(folder, outcome, facts)
        print(f"\nThe run is kept in benchmarks/runs/{folder.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
