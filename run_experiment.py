#!/usr/bin/env python3
"""Train ResNet50 on CIFAR-10 under one precision backend and record it with Weights & Biases.

python run_experiment.py                                   # configs/reference.yaml, fp32
python run_experiment.py backend=native                    # torch.amp
python run_experiment.py --config demo backend=apex_o1 optimizer.lr=0.05

The same as `ampcompare run`.

What it attains on 2 cores of an Intel Xeon with AMX (torch 2.14.1, wandb 0.31.0): ResNet20, all of CIFAR-10,
5 epochs, n = 5 seeds each. Accuracy with its 95 % interval; training time of one of two runs at a time, the
median of the three seeds beside which little else ran. Sweep, records and speeds: docs/results.md.

backend=none          78.50 % (78.23 to 78.78)     15 min 44 s
backend=native_bf16   78.54 % (78.33 to 78.74)      7 min 46 s
backend=bf16          77.99 % (77.28 to 78.70)      7 min  6 s
backend=bf16_sr       78.33 % (77.77 to 78.89)      7 min 46 s
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
