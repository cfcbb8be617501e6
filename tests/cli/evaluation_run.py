"""`spcp eval` with small shards, for tests that start it as processes. It notes each shard that it has made.

python evaluation_run.py NOTES SCORES ARGUMENTS...

NOTES is a file of one line a shard, SCORES one for the scores of the table. The process whose number is DIE is killed
when it is about to write its second shard.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spcp import bank, cli, evaluation, files, processes
from spcp.scores import relation


def main() -> None:
    notes, scores = Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv[1:3] = []
    bank.SHARD = relation.SHARD = 64
    evaluation.Evaluation.__init__.__kwdefaults__["batch_size"] = 32
    write, evaluate, made = files.write_tensors, evaluation.evaluate, []

    def noted(path: Path, tensors: Mapping[str, Tensor]) -> None:
        made.append(path.name)
        if os.environ.get("DIE") == str(processes.rank()) and len(made) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, tensors)
        with open(notes, "a") as file:
            file.write(f"{path.name}\n")

    def kept(*arguments: Any, **options: Any) -> evaluation.Table:
        table = evaluate(*arguments, **options)
        if processes.rank() == 0:
            write(scores, {f"{name} on {role}": values for (name, role), values in table.scores.items()})
        return table

    bank.write_tensors, evaluation.evaluate = noted, kept
    cli.main()


if __name__ == "__main__":
    main()
