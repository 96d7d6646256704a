"""A process that writes a run until it is killed; the tests of this folder start it.

    python store_writer.py FOLDER put|seal|folder
Prints the id of everything whose call has returned.
"""

import itertools
import sys
from pathlib import Path

from patchwright.store import Run
from patchwright.types import Grade, GradeState, Trajectory, Turn


def attempt(name: str) -> Trajectory:
    turn = Turn(id=0, prompt_ids=tuple(range(300)), completion_ids=tuple(range(90)), logprobs=(-0.5,) * 90)
    return Trajectory(
        id=name, task_id="t", turns=(turn,) * 4, patch="diff\n" * 50, grade=Grade(state=GradeState.RESOLVED)
    )


def write(run: Run, mode: str, number: int) -> None:
    name = f"{mode}-{number:05}"
    if mode == "folder":
        beside = run.path / "weights.tmp"
        (beside / "deep").mkdir(parents=True, exist_ok=True)
        for part in range(20):
            (beside / "deep" / str(part)).write_text(str(number))
        run.commit_folder(beside, run.folder("weights", number % 3))
    else:
        run.put(attempt(name), stage="s", step=0, version=0)
        if mode == "seal" and number % 5 == 0:
            run.seal("s", 0)
    sys.stdout.write(name + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    with Run.create_or_open(folder, {}) as run:
        start = len(run.keys("s", 0))
        for number in itertools.count(start):
            write(run, mode, number)


if __name__ == "__main__":
    main()
