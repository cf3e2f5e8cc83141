"""The apex-shaped module: scripts written for apex, what they may pass, what is refused, and `reset`."""

import copy
import io
import warnings
from collections import UserDict
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from ampcompare.precision.apex import amp
from ampcompare.precision.o1.cast_lists import list_entries

HALF, FLOAT = torch.float16, torch.float32
INF = float("inf")
LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _reset():
    yield
    amp.reset()


def make_line(weight: float = 1.0) -> nn.Linear:
    """Return a model with one weight."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    return model


def make_pair(**settings_):
    """Return a model with one weight and its optimizer."""
    model = make_line()
    return model, torch.optim.SGD(model.parameters(), lr=0.125, **settings_)


def start(level: str = "O1", **options):
    """Return an initialized model with one weight, and its optimizer."""
    options.setdefault("max_loss_scale", 1024.0)  # at 2**16 a gradient of 1 is beyond fp16 already
    return amp.initialize(*make_pair(), opt_level=level, verbosity=0, **options)


def backward(model: nn.Module, optimizers, factor: float = 1.0, **options) -> None:
    """Run a scaled backward."""
    with amp.scale_loss(model(torch.ones(1, 1)).sum() * factor, optimizers, **options) as scaled:
        scaled.backward()


def get_scales() -> list[float]:
    """Return the loss scales."""
    return [state["loss_scale"] for state in amp.state_dict().values()]


def matmul_type() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype


def list_wrapped_names() -> dict[tuple[int, str], object]:
    """Return the functions that O1 may wrap."""
    return {(id(namespace), name): vars(namespace).get(name) for namespace, name, _ in list_entries()}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scheduler_made", ["before", "after"])
def test_classic_training_script_learns_without_a_warning(level, scheduler_made) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=20) if scheduler_made == "before" else None
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    scheduler = scheduler or CosineAnnealingLR(optimizer, T_max=20)
    targets = torch.arange(12) % 3
    inputs = torch.randn(12, 3, 4, 4) * 0.1 + torch.eye(3)[targets][:, :, None, None]
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            if step == 0 and get_scales() != [1]:
                loss = loss * INF  # the first step is skipped
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[1]
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)  # weights_only: nothing but tensors and plain numbers
    assert loaded["amp"] == saved["amp"]
    assert {tensor.dtype for tensor in loaded["model"].values()} == {FLOAT, torch.int64}
    plain.load_state_dict(loaded["model"])
    with amp.disable_casts():
        expected = plain.eval()(inputs)
    torch.testing.assert_close(model.eval()(inputs).float(), expected, rtol=0.02, atol=0.02)


def test_disabled_changes_nothing_whatever_else_is_passed() -> None:
    start("O1")
    model, optimizer = make_pair()
    before = [dict(vars(thing)) for thing in (model, optimizer)]
    options = {"enabled": False, "opt_level": "whatever", "loss_scale": "x"}
    assert amp.initialize(model, optimizer, **options) == (model, optimizer)
    assert [dict(vars(thing)) for thing in (model, optimizer)] == before
    assert matmul_type() is FLOAT  # the casts of an earlier call are off
    assert list(amp.master_params(optimizer)) == [model.weight]
    loss = model.weight.sum()
    with amp.scale_loss(loss, optimizer, loss_id=7) as scaled:
        assert scaled is loss


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_delayed_and_normal_calls_give_the_sum(level) -> None:
    model, optimizer = start(level)
    for factor, delay in ((1, True), (3, False), (-2, True), (5, True), (2, False)):
        backward(model, optimizer, factor, delay_unscale=delay)
    assert next(amp.master_params(optimizer)).grad.item() == 9
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 2


def test_overflow_of_a_delayed_check_is_not_lost() -> None:
    model, optimizer = start()
    for factor, delay, scale in ((INF, True, 1024), (1.0, False, 512)):
        optimizer.zero_grad()
        backward(model, optimizer, factor, delay_overflow_check=delay)
        assert get_scales() == [scale]
    optimizer.step()
    assert model.weight.item() == 1


@pytest.mark.parametrize(("saved", "expected"), [(1, [1, 1024]), (3, [1, 2])])
def test_state_of_another_number_of_losses_warns_and_loads_what_both_have(saved, expected) -> None:
    start(num_losses=2)
    state = {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": i} for i in range(saved)}
    with pytest.warns(UserWarning, match=rf"contains {saved} entries, while 2 loss_scalers"):
        amp.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: scale\.$"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 0}, "scale": 1.0})
    assert get_scales() == expected


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_copied_model_still_casts_with_its_own_weights(level) -> None:
    model, _ = start(level)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.fill_(3)
    assert twin(torch.ones(1, 1)).item() == 3
    assert twin(torch.ones(1, 1)).dtype is (HALF if level == "O1" else FLOAT)
    assert twin.state_dict()["weight"].dtype is FLOAT
    assert model(torch.ones(1, 1)).item() == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_replica_of_data_parallel_is_refused_with_what_to_use_instead(level) -> None:
    """`nn.DataParallel` makes replicas by this method in each forward on several GPUs."""
    model, _ = start(level)
    with pytest.raises(RuntimeError, match=r"use nn\.parallel\.DistributedDataParallel"):
        model._replicate_for_data_parallel()


@pytest.mark.parametrize("fused", [False, True])
def test_overflow_skips_the_optimizers_of_its_call_and_no_others(fused) -> None:
    models = [make_line() for _ in range(3)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.125, fused=fused) for m in models]
    models, optimizers = amp.initialize(models, optimizers, num_losses=2, max_loss_scale=1024.0)
    x = torch.ones(1, 1)
    loss = models[0](x).sum() * INF + models[1](x).sum()  # the gradient of one of the two is finite
    with amp.scale_loss(loss, optimizers[:2], loss_id=0) as scaled:
        scaled.backward()
    assert models[1].weight.grad.isfinite()
    backward(models[2], optimizers[2], loss_id=1)
    assert [(s["loss_scale"], s["unskipped"]) for s in amp.state_dict().values()] == [(512, 0), (1024, 1)]
    for optimizer in optimizers:
        optimizer.step()
    assert [m.weight.item() for m in models] == [1, 1, 0.875]


@pytest.mark.parametrize("level", LEVELS)
def test_group_added_after_initialize_is_trained(level) -> None:
    first, second = make_line(), make_line()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.125)
    models, optimizer = amp.initialize([first, second], optimizer, opt_level=level, max_loss_scale=1024.0)
    optimizer.add_param_group({"params": list(second.parameters()), "lr": 0.25})
    backward(nn.Sequential(*models), optimizer)
    optimizer.step()
    assert [m.weight.item() for m in models] == [0.875, 0.75]
    assert [p.item() for p in amp.master_params(optimizer)] == [0.875, 0.75]


class Library:
    """A namespace as users have it."""

    @staticmethod
    def twice(x, y=0):
        return x + x + y


@pytest.fixture
def library():
    return type("Fresh", (Library,), {})


@pytest.mark.parametrize(
    ("register", "given_type", "result"),
    [
        (amp.register_half_function, FLOAT, HALF),
        (amp.register_float_function, HALF, FLOAT),
        (amp.register_promote_function, HALF, HALF),
    ],
)
def test_registered_function_follows_its_rule(library, register, given_type, result) -> None:
    before = set(vars(library))
    start()
    register(library, "twice")
    assert library.twice(torch.ones(1, dtype=given_type)).dtype is result
    with amp.disable_casts():
        assert library.twice(torch.ones(1, dtype=given_type)).dtype is given_type
    amp.reset()
    assert set(vars(library)) == before
    start()  # it is forgotten
    assert library.twice(torch.ones(1, dtype=given_type)).dtype is given_type


@pytest.mark.parametrize(("level", "where"), [*((x, "everywhere") for x in LEVELS), ("O1", "forward")])
def test_reset_leaves_every_wrapped_name_and_the_model_as_before(level, where) -> None:
    names = list_wrapped_names()
    model, optimizer = make_pair(momentum=0.5)
    weight, before = model.weight, set(vars(model))
    amp.initialize(model, optimizer, opt_level=level, casts=where, max_loss_scale=1024.0)
    assert (list_wrapped_names() != names) is (level == "O1")
    for optimizer.param_groups[0]["lr"] in (0.125, 2.0**-12):
        backward(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    amp.reset()
    assert list_wrapped_names() == names
    assert set(vars(model)) == before
    assert model.weight is weight
    assert weight.dtype is FLOAT
    assert weight.item() == 0.875 - (2.0**-11 if level == "O3" else 1.5 * 2.0**-12)  # finer than fp16
    assert optimizer.param_groups[0]["params"] == [*optimizer.state] == [weight]
    assert optimizer.state[weight]["momentum_buffer"].item() == 1.5
    assert model(torch.ones(1, 1, dtype=FLOAT)).dtype is FLOAT


def initialize_model(level, **overrides) -> nn.Sequential:
    """Return an initialized model."""
    return amp.initialize(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), opt_level=level, **overrides)


@pytest.mark.parametrize(
    ("level", "types", "product", "first_scale", "options"),
    [
        ("O0", [FLOAT, FLOAT], FLOAT, 1.0, {}),
        ("O1", [FLOAT, FLOAT], HALF, 2.0**16, {}),
        ("O1", [FLOAT, FLOAT], FLOAT, 1000.0, {"casts": "forward", "loss_scale": "1e3"}),
        ("O2", [HALF, FLOAT], FLOAT, 2.0**16, {}),
        ("O3", [HALF, HALF], FLOAT, 1.0, {}),
        ("O3", [HALF, FLOAT], FLOAT, 2.0**16, {"keep_batchnorm_fp32": "True", "loss_scale": "dynamic"}),
    ],
)
def test_levels_are_those_of_apex(level, types, product, first_scale, options) -> None:
    assert [module.weight.dtype for module in initialize_model(level, **options)] == types
    assert matmul_type() is product
    assert get_scales() == [first_scale]


def test_what_apex_refused_is_refused_in_its_words() -> None:
    model, optimizer = start()
    _, stranger = make_pair()
    contradicts = [
        ("O1", {"cast_model_type": HALF}, "should remain FP32"),
        ("O1", {"keep_batchnorm_fp32": "False"}, "keep_batchnorm_fp32 should be None"),
        ("O1", {"master_weights": False}, "doesn't make sense to use master_weights"),
        ("O2", {"keep_batchnorm_fp32": "maybe"}, "keep_batchnorm_fp32='maybe'"),
    ]
    refused = [
        (lambda: amp.initialize(make_line().half()), "type float16, expected float32"),
        (lambda: amp.initialize(nn.DataParallel(make_line())), "instance of DataParallel.*AFTER"),
        (lambda: amp.initialize(make_line(), optimizer), "same optimizer was given"),
        (lambda: optimizer.step(lambda: None), "does not support closure use"),
        (lambda: backward(model, stranger), "never saw"),
        *((partial(initialize_model, level, **how), why) for level, how, why in contradicts),
    ]
    for call, why in refused:
        with pytest.raises(RuntimeError, match=why):
            call()
    with pytest.raises(IndexError, match="num_losses=1"):
        backward(model, optimizer, loss_id=1)
    for value in ("fast", -1.0, float("nan")):
        with pytest.raises(ValueError, match="expected 'dynamic' or a positive number"):
            initialize_model("O1", loss_scale=value)
    amp.reset()
    with pytest.raises(RuntimeError, match="has not been initialized"):
        backward(model, optimizer)


class Echo(nn.Linear):
    """Gives back what it was given."""

    def forward(self, given):
        self.seen = given
        return given


def test_o2_casts_floating_tensors_at_any_depth_of_inputs_and_outputs_and_nothing_else() -> None:
    model = amp.initialize(Echo(1, 1), opt_level="O2", cast_model_outputs=torch.float64)
    x, count = torch.zeros(2), torch.arange(2)
    output = model(UserDict({"b": [x, (count, None)], "a": 1.5}))
    for found, dtype in ((model.seen, HALF), (output, torch.float64)):
        assert type(found) is UserDict
        one, (same, nothing) = found["b"]
        assert (one.dtype, same is count, nothing, found["a"]) == (dtype, True, None, 1.5)
    assert x.dtype is FLOAT


# The fp32 masters of O2's fp16 weights.


def get_master(optimizer) -> torch.Tensor:
    """Return the optimizer's only parameter."""
    (found,) = amp.master_params(optimizer)
    return found


def test_sum_of_micro_batches_beyond_fp16_is_no_overflow() -> None:
    model, optimizer = start("O2", loss_scale=2.0)
    for _ in range(3):
        backward(model, optimizer, 30000.0)
    assert get_master(optimizer).grad.item() == 90000


def test_checkpoint_loaded_after_initialize_is_what_is_trained() -> None:
    model, optimizer = start("O2")
    model.load_state_dict(make_line(3.0).state_dict())
    assert get_master(optimizer).item() == 3
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 3 - 0.125
