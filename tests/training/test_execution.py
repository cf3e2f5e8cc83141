"""A compiled and a captured step are the eager one; what cannot be had is refused before training."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.outside import Outside
from support.properties import backends
from support.quick import QUICK, ROOT
from support.training import fit, timeless, trainer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.precision import REGISTRY
from ampcompare.training.torch_compile import check_execution


class Net(nn.Module):
    """Takes its input by name; O1's casts are on a method and an operator of it, statistics on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.types: set[tuple[torch.dtype, ...]] = set()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        half = self.norm(self.first(x))
        wide = half.exp()
        self.types.add((half.dtype, wide.dtype, (half + wide).dtype))
        return {"logits": self.last(half + wide)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_compiled_steps_give_the_losses_of_eager_ones(backend: str):
    draw = torch.Generator().manual_seed(1)
    # The last batch of an epoch is short: a shape of its own.
    sizes = (32, 32, 32, 20, 32)
    batches = [({"x": torch.randn(size, 8, generator=draw)}, torch.arange(size) % 4) for size in sizes]
    found, cold, types = [], [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Net()
        made = trainer(backend, model, momentum=0.9, compiled=compiled, init_scale=1024.0)
        with made.precision.session():
            steps = [made.step([batch]) for batch in batches]
        found.append([x.float().sum().item() for x in (*(step.loss for step in steps), *model.buffers())])
        cold.append([step.compiled for step in steps])
        types.append(model.types)
    # fp16 rounds at other places in a fused kernel.
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-3)
    assert cold == [[False] * 5, [True, False, False, True, False]]
    assert types[1] == types[0]


def test_a_cuda_graph_on_a_cpu_is_refused():
    config = load_config(None, ["execution=cuda_graph"])
    with pytest.raises(
        UserError, match=r"execution='cuda_graph': device='cpu' has no CUDA graphs.*execution=compile"
    ):
        check_execution(config, torch.device("cpu"))


@pytest.mark.parametrize(
    "words",
    [
        "execution=compile training.gradient_penalty=0.1",
        "execution=cuda_graph training.gradient_penalty=1",
        "execution=cuda_graph training.accumulate=2",
        "execution=cuda_graph optimizer.fused=false",
    ],
)
def test_unsupported_options_of_an_execution_are_refused(words: str):
    with pytest.raises(UserError, match=words.split()[0].replace("=", "='")):
        load_config(None, words.split())


@pytest.mark.slow
def test_without_a_compiler_the_run_ends_in_one_line_before_training(tmp_path: Path):
    command = [
        sys.executable,
        ROOT / "run_experiment.py",
        *QUICK,
        "execution=compile",
        f"output_dir={tmp_path}",
    ]
    missing = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | missing, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: execution='compile': torch.compile does not work")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.wandb"))


# The step as one CUDA graph. On a CPU a graph is played: its ops are recorded, and run again at each launch.


class PlayedGraph(TorchDispatchMode):
    """A CUDA graph on the CPU: each launch runs the recorded ops on the same tensors.

    A capture runs nothing; here it runs the step, so the launch behind it has nothing left to do.
    """

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._calls = calls
        self._ops: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._ops.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        self._calls.append("launch")
        if self._calls[-2] == "capture":
            return
        for func, args, kwargs, result in self._ops:
            again = func(*args, **kwargs)
            for kept, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(kept, Tensor) and kept is not new:
                    kept.copy_(new)


@pytest.fixture
def played(outside: Outside) -> list[str]:
    """Let PyTorch capture graphs without a GPU; return the captures and launches."""
    calls: list[str] = []

    @contextmanager
    def capture(graph: PlayedGraph, stream: None) -> Iterator[None]:
        with graph:
            yield
        calls.append("capture")

    outside.replace(torch.cuda, "CUDAGraph", lambda: PlayedGraph(calls))
    outside.replace(torch.cuda, "graph", capture)
    outside.replace(torch.cuda, "device", nullcontext)
    outside.replace(torch.cuda, "current_stream", lambda device: None)
    return calls


@backends(REGISTRY)
def test_a_run_with_a_cuda_graph_logs_the_same_as_an_eager_run(backend: str, played: list[str]):
    words = (
        f"backend={backend}",
        "precision.init_scale=65536",
        "training.clip_norm=5",
        "diagnostics.every=7",
    )
    eager, eager_rows = fit(*words)
    eager.run()
    graphed, graphed_rows = fit(*words, "execution=cuda_graph")
    graphed.run()
    assert timeless(graphed_rows) == timeless(eager_rows)
    # Three epochs of six batches, the last of each short. Not launched: three at first, short ones, looks (7,
    # 14).
    assert played.count("capture") == 1
    assert played.count("launch") == 18 - 3 - 3 - 2


def test_the_capture_is_no_step_to_time(played: list[str]):
    made, _ = fit("execution=cuda_graph", "diagnostics.every=null")
    loader = made.train
    results = [made.trainer.step([plan]) for plan in loader.plans(0)]  # type: ignore[attr-defined]
    assert [r.compiled for r in results] == [False, False, False, True, False, False]
    assert [r.samples for r in results] == [8] * 5 + [5]
