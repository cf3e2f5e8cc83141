"""What `execution=compile` makes of a training step on an H100, seen without one: its kernels, counted by
name.

    python benchmarks/compiled_kernels.py native --fuse
    python benchmarks/compiled_kernels.py apex_o1 --model tiny --keep DIR
    python benchmarks/compiled_kernels.py ops      the ops of `fuse=true`, each by itself

The step is traced on the CPU; its graphs are then given to Inductor with tensors that say they are on a GPU,
whose properties are made up here, and the code is read before it would be compiled. Bound to PyTorch 2.14's
insides: where a later one asks the device something else, it fails and needs another line below.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, scheduler
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from ampcompare.fusion import batch, norm_relu
from ampcompare.fusion.compiled import INDUCTOR
from ampcompare.fusion.modules import fuse_model
from ampcompare.models import build_model
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.train.execution import build_forward

H100 = {
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
}
PROPERTIES = DeviceProperties(
    type="cuda", index=0, cc=90, major=9, max_threads_per_block=1024, warp_size=32, **H100
)
NAMED = SimpleNamespace(name="H100", major=9, minor=0, total_memory=80 << 30, L2_cache_size=50 << 20, **H100)

Graph = tuple[torch.fx.GraphModule, list[Any]]


def traced(backend: str, model_name: str, fuse: bool, batch_size: int) -> list[Graph]:
    """The graphs of forward and backward, with copies of their inputs' descriptions."""
    from functorch.compile import make_boxed_func

    found: list[Graph] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append((copy.deepcopy(graph), [(tuple(x.shape), x.stride(), x.dtype) for x in inputs]))
        return make_boxed_func(graph.forward)

    compiler = aot_autograd(
        fw_compiler=keep,
        bw_compiler=keep,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    model = build_model(model_name, "cifar", 10).to(memory_format=torch.channels_last)
    if fuse:
        fuse_model(model, blocks=False)
    precision = build_precision(backend, fuse=fuse)
    model, _ = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    images = torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    real = torch.compile
    with (
        mock.patch("torch.compile", lambda function, **how: real(function, backend=compiler, **how)),
        precision.session(),
    ):
        forward = build_forward(model, torch.nn.functional.cross_entropy, True)
        with precision.forward_context():
            _, loss = forward(images, torch.zeros(batch_size, dtype=torch.int64))
        precision.backward(loss)
    return found


def code_for_gpu(graph: torch.fx.GraphModule, inputs: list[Any], *, is_backward: bool) -> str:
    """Inductor's code for the graph on an H100."""
    found: list[str] = []

    def read(lowering: GraphLowering) -> None:
        code, _ = lowering.codegen()
        found.append(getattr(code, "value", code))
        raise KeyboardInterrupt  # here it would be compiled

    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
    graph.recompile()
    nothing, no_context = lambda *args, **kwargs: None, lambda *args: contextlib.nullcontext()
    with FakeTensorMode() as mode:
        fake = [
            torch.empty_strided(shape, stride, dtype=dtype, device="cuda:0")
            for shape, stride, dtype in inputs
        ]
        FakeTensorProp(graph, mode=mode).propagate_dont_convert_inputs(*fake)
        with contextlib.ExitStack() as stack:
            for name, value in {
                "torch.cuda.is_available": lambda: True,
                "torch.cuda.device_count": lambda: 1,
                "torch.cuda.current_device": lambda: 0,
                "torch.cuda.get_device_properties": lambda *args: NAMED,
                "torch.cuda.get_device_capability": lambda *args: (9, 0),
                "torch._dynamo.utils.preserve_rng_state": contextlib.nullcontext,
                "torch._dynamo.device_interface.CudaInterface.Worker.get_device_properties": lambda *args: (
                    NAMED
                ),
                "torch._inductor.runtime.hints.DeviceProperties.create": lambda device: PROPERTIES,
                "torch._inductor.compile_fx.get_cuda_device_context": no_context,
                "torch._inductor.fx_passes.fuse_attention._sfdp_init": nothing,
                "torch._inductor.fx_passes.pad_mm._pad_mm_init": nothing,
                "torch._inductor.fx_passes.misc_patterns._misc_patterns_init": nothing,
                "torch._inductor.fx_passes.joint_graph.constant_fold_uniform_value": nothing,
                "torch._inductor.codegen.triton.triton_hash_with_backend": lambda *args: "none",
                "torch.utils._triton.triton_hash_with_backend": lambda *args: "none",
            }.items():
                stack.enter_context(mock.patch(name, value, create=True))
            stack.enter_context(mock.patch.object(scheduler, "has_triton", return_value=True))
            stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", read))
            with contextlib.suppress(KeyboardInterrupt):
                compile_fx.compile_fx_inner(graph, fake, is_backward=is_backward)
    return found[-1]


def fused_ops() -> Iterator[tuple[str, torch.fx.GraphModule, list[Any]]]:
    """The ops of `fuse=true` on fp16 activations in the middle of ResNet50, channels_last, batch 128."""
    x = torch.zeros(128, 256, 16, 16, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    weight, bias, mean, var = (torch.ones(256) for _ in range(4))
    images, plan = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8), torch.zeros(4, 128, dtype=torch.int64)
    statistics = (weight, bias, mean, var)
    calls = {
        "forward": (norm_relu._training, (x, None, *statistics, 0.1, 1e-5)),
        "forward with a residual": (norm_relu._training, (x, x.clone(), *statistics, 0.1, 1e-5)),
        "backward": (norm_relu._backward, (x, x.clone(), None, *statistics)),
        "backward with a residual": (norm_relu._backward, (x, x.clone(), x.clone(), *statistics)),
        "batch": (batch._batch, (images, plan, torch.ones(3), torch.ones(3), 4, True, True, torch.float16)),
    }
    for name, (function, args) in calls.items():
        tensors = [a for a in args if isinstance(a, torch.Tensor)]

        def of_tensors(*given: torch.Tensor, _function: Any = function, _args: Any = args) -> Any:
            left = iter(given)
            found = _function(*(next(left) if isinstance(a, torch.Tensor) else a for a in _args))
            return found if isinstance(found, tuple) else (found,)

        with torch.no_grad():
            graph = make_fx(of_tensors, tracing_mode="fake", decomposition_table=select_decomp_table())(
                *tensors
            )
        yield name, graph, [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def kernels_of(code: str) -> list[str]:
    return re.findall(r"^\s+(triton_\w+?)(?:_\d+)?\.run\(", code, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=[*REGISTRY, "ops"])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--fuse", action="store_true")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="a folder for the code")
    chosen = parser.parse_args()
    if chosen.backend == "ops":
        with inductor_config.patch(INDUCTOR):
            for name, graph, inputs in fused_ops():
                kernels = kernels_of(code_for_gpu(graph, inputs, is_backward=False))
                print(f"{name}: {len(kernels)} kernels ({', '.join(kernels)})")
        return
    graphs = traced(chosen.backend, chosen.model, chosen.fuse, chosen.batch_size)
    for way, (graph, inputs) in zip(("forward", "backward"), graphs, strict=True):
        code = code_for_gpu(graph, inputs, is_backward=way == "backward")
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            (chosen.keep / f"{way}.py").write_text(code)
        kernels = kernels_of(code)
        others = re.findall(r"(extern_kernels\.\w+|torch\.ops\.aten\.\w+\.\w+)\(", code)
        print(f"{way}: {len(kernels)} kernels, {len(others)} calls of libraries {dict(Counter(others))}")
        for name, count in Counter(kernels).most_common():
            print(f"  {count:4} {name}")


if __name__ == "__main__":
    main()
