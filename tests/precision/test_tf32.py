"""fp32 with TF32: where there is none it is refused, and where it is used PyTorch's switches say so."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fakes import make
from support.outside import Outside
from support.quick import QUICK
from support.refusals import line_of
from support.rehearsal.stage import stage

from ampcompare import analyse_runs
from ampcompare.config.load import load_config
from ampcompare.entrypoint import main
from ampcompare.precision import build_precision
from ampcompare.precision.keep_fp32 import KeepFp32Error
from ampcompare.system.device import (
    check_tf32,
    compute_capability,
    current_numerics,
    current_tf32,
    has_tf32,
    set_numerics,
)
from ampcompare.training.factory import allows_tf32
from ampcompare.training.run_context import prepare_run

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda", "mps"))
NEEDS = "backend='tf32': needs an NVIDIA GPU of compute capability 8.0 or higher, but "


@pytest.fixture
def gpu(outside: Outside) -> Callable[..., None]:
    """Make PyTorch tell of a GPU of this compute capability and name."""
    return outside.set_gpu


def switches() -> list[Any]:
    """Return PyTorch's switches for fp32 arithmetic, new and old."""
    backends: Any = torch.backends
    places = (backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
    found = [place.fp32_precision for place in (*places, backends.mkldnn.matmul)]
    return [*found, torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32]


def test_nvidia_gpus_have_tf32_from_ampere_on(gpu: Callable[..., None]):
    for capability, expected in {(7, 5): False, (8, 0): True, (12, 0): True}.items():
        gpu(capability)
        assert has_tf32(CUDA) is expected
        assert compute_capability(CUDA) == capability
    gpu((9, 4), hip="6.2")  # an AMD GPU, which PyTorch calls cuda, too
    assert not any(map(has_tf32, (CUDA, CPU, MPS)))


def test_a_device_without_tf32_is_refused_by_name(gpu: Callable[..., None]):
    assert line_of(check_tf32, MPS, "tf32") == f"{NEEDS}the device is mps; use backend=none"
    gpu((7, 0), "Tesla V100-SXM2-16GB")
    assert line_of(check_tf32, CUDA, "tf32") == f"{NEEDS}Tesla V100-SXM2-16GB has 7.0; use backend=none"
    assert line_of(build_precision, "tf32", "cuda").startswith(NEEDS)


def test_a_run_on_a_cpu_ends_with_a_line_and_exit_code_2_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as end:
        main([*QUICK, "backend=tf32", "device=cpu", f"output_dir={tmp_path / 'runs'}"])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert re.fullmatch(rf"error: {re.escape(NEEDS)}the device is cpu; use backend=none\n", message)
    assert not [*tmp_path.glob("runs/**/*.wandb")]


def test_training_sets_and_restores_the_tf32_switches():
    set_numerics(tf32=False, cudnn_benchmark=False, deterministic=False)
    strict = switches()
    with stage():
        uses, plain = build_precision("tf32", "cuda"), build_precision("native", "cuda", tf32=False)
        with uses.training_context():
            assert current_numerics()["tf32"] is True
            assert switches()[:4] == ["tf32"] * 4
            with plain.training_context():
                assert switches() == strict
            assert current_numerics()["tf32"] is True
        assert switches() == strict


def test_options_that_contradict_tf32_or_strict_fp32_are_refused():
    with pytest.raises(ValueError, match=r"tf32=True: .*; use backend=tf32$"):
        build_precision("none", tf32=True)
    with stage():
        with pytest.raises(ValueError, match=r"tf32=False: .*; use backend=none$"):
            build_precision("tf32", "cuda", tf32=False)
        with pytest.raises(KeepFp32Error, match=r"precision\.keep_fp32=fc: backend=tf32 uses TF32 in every"):
            build_precision("tf32", "cuda", keep_fp32="fc")
        assert build_precision("tf32", "cuda", tf32=True).tf32 is True


def test_backend_and_option_set_tf32_outside_of_steps_too():
    for own, expected in ((), False), (("backend=native",), False), (("backend=native", "tf32=true"), True):
        context = prepare_run(load_config(None, [*QUICK, "device=cpu", *own]))
        assert current_numerics()["tf32"] is expected
        trainer = context.build_trainer()
        assert context.describe_environment(trainer)["tf32"] is expected
        set_numerics(tf32=not expected, cudnn_benchmark=False, deterministic=False)
        with trainer.precision.training_context():  # whatever another training in the process has set
            assert current_numerics()["tf32"] is expected
    set_numerics(tf32=False, cudnn_benchmark=False, deterministic=False)
    assert allows_tf32(load_config(None, ["backend=tf32"]))


PLAIN_LOOP = {"tf32": False, "tf32_convolutions": True, "tf32_recurrent": True}  # PyTorch's default
STRICT = dict.fromkeys(PLAIN_LOOP, False)


def test_a_recorded_loop_tells_matrix_products_convolutions_and_recurrent_layers_apart(
    gpu: Callable[..., None],
):
    set_numerics(tf32=False, cudnn_benchmark=False, deterministic=False)
    cudnn: Any = torch.backends.cudnn
    gpu((8, 0), "NVIDIA A100-SXM4-40GB")
    try:
        for key, switch in (
            ("tf32", torch.backends.cuda.matmul),
            ("tf32_convolutions", cudnn.conv),
            ("tf32_recurrent", cudnn.rnn),
        ):
            switch.fp32_precision = "tf32"
            assert current_tf32(CUDA) == {**STRICT, key: True}
            switch.fp32_precision = "ieee"
        assert current_tf32(CPU) == STRICT
    finally:
        set_numerics(tf32=False, cudnn_benchmark=False, deterministic=False)


A100 = {"device_type": "cuda", "device_name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"}


@pytest.mark.parametrize(
    ("recorded", "switches", "sentence"),
    [
        (False, {"tf32": False}, "is strict fp32"),
        (True, {"tf32": False}, ""),  # of an earlier version
        (True, STRICT, "is strict fp32"),
        (True, PLAIN_LOOP, "TF32 in convolutions and recurrent layers."),
        (True, {**STRICT, "tf32": True}, "TF32 in matrix products."),
    ],
)
def test_strict_fp32_is_said_of_runs_whose_switches_are_all_off(
    recorded: bool, switches: dict[str, bool], sentence: str
):
    made = [make(backend, seed) for backend in ("none", "native") for seed in range(3)]
    for run in made:
        run.environment.update(A100 | dict.fromkeys(STRICT) | switches)
        if recorded:
            run.config["recorder"] = {"version": 1, "backend": run.config["backend"]}
    said = "".join(caveat for caveat in analyse_runs(made).caveats if "TF32" in caveat)
    assert sentence in said
    assert bool(said) == bool(sentence)
