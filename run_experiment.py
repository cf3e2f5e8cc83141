#!/usr/bin/env python3
"""Train ResNet50 on CIFAR-10 under one precision backend and record it with Weights & Biases.

python run_experiment.py                                   # configs/reference.yaml, fp32
python run_experiment.py backend=native                    # torch.amp
python run_experiment.py --config demo backend=apex_o1 optimizer.lr=0.05
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))  # a checkout runs without being installed

from ampcompare.config.arguments import parse
from ampcompare.errors import UserError, exit_with
from ampcompare.program.stopping import EXIT_INTERRUPTED, leave
from ampcompare.program.utf8 import use_utf8

USAGE = """usage: python run_experiment.py [--config NAME_OR_PATH] [key=value | --key=value | --key value ...]

Trains one run. --config names a file of configs/ or a path (default: reference); words override its values.
The options, each with its default, meaning and what it may be:
"""


def main(words: list[str]) -> int:
    """Run; returns the exit code: 0 finished, 1 failed, 2 bad input, 130 Ctrl-C, 129 and 143 stopped."""
    if "--help" in words or "-h" in words:
        from ampcompare.config.options import describe
        from ampcompare.config.schema import Config

        print(USAGE + describe(Config))
        return 0
    try:
        config = parse(words)
        from ampcompare.experiment import run  # torch and W&B load here, when the input is known to be good

        return run(config).exit_code
    except UserError as problem:
        from ampcompare.tracking.refusal import record_refusal

        record_refusal(problem)
        exit_with(problem)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    use_utf8()
    leave(main(sys.argv[1:]))
