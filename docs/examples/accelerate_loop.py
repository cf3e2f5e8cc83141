"""A loop with Hugging Face's accelerate under the recorder: `python accelerate_loop.py [FOLDER]`.

On a GPU `Accelerator(mixed_precision="fp16")` makes its scaler by itself; on a CPU it is given one here.
"""

import sys

import torch
from accelerate import Accelerator

from ampcompare import Recorder

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
torch.manual_seed(3)
x = torch.randn(160, 6)
data = torch.utils.data.TensorDataset(100 * x, x.sum(1, keepdim=True))
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

skipped = 0
folder = sys.argv[1] if len(sys.argv) > 1 else "runs"
how = {"every": 5, "warmup_steps": 4, "diagnostics": 4, "output_dir": folder}
with Recorder(
    backend="native", seed=3, batch_size=8, scaler=accelerator, optimizer=optimizer, model=model, **how
) as record:
    for epoch in range(4):
        samples, total = 0, torch.zeros(())
        for number, (inputs, targets) in enumerate(loader, 1):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            samples, total = samples + len(inputs), total + loss.detach() / 2
            if accelerator.sync_gradients:  # an optimizer step, or one that was skipped
                record.step(loss=total, samples=samples, epoch=epoch + number / len(loader))
                skipped += accelerator.optimizer_step_was_skipped  # accelerate's own count, for the test
                samples, total = 0, torch.zeros(())
        record.evaluate(loss=loss, accuracy=0.5)
