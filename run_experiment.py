#!/usr/bin/env python3
"""Train ResNet50 on CIFAR-10 under one precision backend and record it with Weights & Biases.

python run_experiment.py                                   # configs/reference.yaml, fp32
python run_experiment.py backend=native                    # torch.amp
python run_experiment.py --config demo backend=apex_o1 optimizer.lr=0.05

The same as `ampcompare run`.

Eval accuracy and training time of docs/results/2026-11-22-xeon-amx/accuracy/sweep.yaml: ResNet20 on all of
CIFAR-10 (as JPEG), 5 epochs, 2 cores of an Intel Xeon with AMX, torch 2.14.1, wandb 0.31.0. n = 5 runs per
backend, 98.33% confidence intervals. The time is computed for 250,000 images from the speed of separate runs,
one at a time (docs/results.md).

backend=none         78.50% (78.11 to 78.90)   7.5 min (6.5 to 8.7)
backend=native_bf16  78.54% (78.25 to 78.83)   4.3 min (3.5 to 5.1)
backend=bf16         77.99% (76.98 to 79.00)   4.3 min (3.4 to 5.4)
backend=bf16_sr      78.33% (77.53 to 79.13)   4.3 min (3.6 to 5.1)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))  # a checkout runs without being installed

from ampcompare.entrypoint import main
from ampcompare.runtime.signals import exit_process
from ampcompare.runtime.startup import use_utf8

if __name__ == "__main__":
    use_utf8()
    exit_process(main(sys.argv[1:]))
