#!/usr/bin/env python3
"""Train ResNet50 on CIFAR-10 under one precision backend and record it with Weights & Biases.

python run_experiment.py                                   # configs/reference.yaml, fp32
python run_experiment.py backend=native                    # torch.amp
python run_experiment.py --config demo backend=apex_o1 optimizer.lr=0.05

The same as `ampcompare run`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))  # a checkout runs without being installed

from ampcompare.entrypoint import main
from ampcompare.program.stopping import leave
from ampcompare.program.utf8 import use_utf8

if __name__ == "__main__":
    use_utf8()
    leave(main(sys.argv[1:]))
