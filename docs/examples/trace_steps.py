"""Steps of a run as a trace for Perfetto (https://ui.perfetto.dev): `python trace_steps.py backend=native`.

On an NVIDIA GPU also what they allocate, for https://pytorch.org/memory_viz.
"""

import sys

import torch
from torch.profiler import profile

from ampcompare.training.run_context import make_config, prepare_run, with_synthetic_data

context = prepare_run(with_synthetic_data(make_config(sys.argv[1:])))
trainer, (first, *steps) = context.build_trainer(), context.first_steps(4)
on_gpu = context.world.device.type == "cuda"
with trainer.precision.training_context():
    trainer.step(first)  # makes the optimizer's states, chooses kernels
    if on_gpu:
        torch.cuda.memory._record_memory_history(max_entries=100_000)
    with profile(record_shapes=True) as found:
        for batches in steps:
            trainer.step(batches)
            found.step()
    if on_gpu:
        torch.cuda.memory._dump_snapshot("memory.pickle")
found.export_chrome_trace("trace.json")
print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))
