"""The apex-shaped module: scripts written for apex, what they may pass, what is refused, and `reset`."""

from __future__ import annotations

import copy
import io
import math
import pickle
import threading
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.checkpoint import checkpoint

from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp
from ampcompare.precision.o1.tables import entries

HALF, FLOAT = torch.float16, torch.float32
INF = float("inf")
LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _reset():
    yield
    amp.reset()


def line(weight: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    return model


def pair(weight: float = 1.0, **settings_):
    model = line(weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.125, **settings_)


def started(level: str = "O1", **options):
    options.setdefault("max_loss_scale", 1024.0)  # at 2**16 a gradient of 1 is beyond fp16 already
    return amp.initialize(*pair(), opt_level=level, verbosity=0, **options)


def backward(model: nn.Module, optimizers, factor: float = 1.0, **options) -> None:
    with amp.scale_loss(model(torch.ones(1, 1)).sum() * factor, optimizers, **options) as scaled:
        scaled.backward()


def backward_that_fails(loss, optimizer) -> None:
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
        raise RuntimeError("after the gradient")


def scales() -> list[float]:
    return [state["loss_scale"] for state in amp.state_dict().values()]


def matmul_type() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype


def wrapped_names() -> dict[tuple[int, str], object]:
    return {(id(namespace), name): vars(namespace).get(name) for namespace, name, _ in entries()}


class Block(nn.Module):
    """A residual block; small, since fp16 convolutions are slow on a CPU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


def small_resnet() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(stem, Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


# scripts


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scheduler_made", ["before", "after"])
def test_classic_training_script_learns_without_a_warning(level, scheduler_made) -> None:
    model = small_resnet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = CosineAnnealingLR(optimizer, T_max=20) if scheduler_made == "before" else None
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    scheduler = scheduler or CosineAnnealingLR(optimizer, T_max=20)
    targets = torch.arange(12) % 3
    inputs = torch.randn(12, 3, 4, 4) * 0.1 + torch.eye(3)[targets][:, :, None, None]
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(15):
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert 0 < norm < 100
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)  # weights_only: nothing but tensors and plain numbers
    assert loaded["amp"] == saved["amp"]
    plain = small_resnet()
    plain.load_state_dict(loaded["model"])
    model.eval()
    with amp.disable_casts():
        expected = plain.eval()(inputs)
    torch.testing.assert_close(model(inputs).float(), expected, rtol=0.02, atol=0.02)


def test_levels_agree_on_the_first_gradients() -> None:
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    found = []
    for level in (*LEVELS, None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, enabled=level is not None, opt_level=level or "O1", loss_scale=256.0)
        with amp.scale_loss(F.cross_entropy(model(x), y), optimizer) as scaled:
            scaled.backward()
        found.append([p.grad.float() for p in amp.master_params(optimizer)])
        amp.reset()
    for other in found[:-1]:
        for one, exact in zip(other, found[-1], strict=True):
            torch.testing.assert_close(one, exact, rtol=0.01, atol=2e-3)


def test_options_are_taken_by_position_in_apex_s_order() -> None:
    model, optimizer = pair()
    amp.initialize(
        model, optimizer, True, "O2", torch.float16, None, "True", False, "128.0", HALF, 3, 0, None, 2.0**10
    )
    assert model.weight.dtype is HALF
    assert next(amp.master_params(optimizer)) is model.weight
    assert scales() == [128.0] * 3
    assert model(torch.ones(1, 1)).dtype is HALF


def test_default_level_is_o1() -> None:
    model, _ = amp.initialize(*pair())
    assert model.weight.dtype is FLOAT
    assert model(torch.ones(1, 1)).dtype is HALF
    assert scales() == [2.0**16]


def test_things_come_back_as_they_were_given() -> None:
    def fresh():
        return [pair() for _ in range(2)]

    (m, o), (m2, o2) = fresh()
    assert amp.initialize(m) is m
    assert amp.initialize([m2]) == [m2]
    amp.reset()
    assert amp.initialize(m, o) == (m, o)
    amp.reset()
    assert amp.initialize([m, m2], o) == ([m, m2], o)
    amp.reset()
    assert amp.initialize(m, [o, o2]) == (m, [o, o2])
    amp.reset()
    assert amp.initialize([m, m2], [o, o2]) == ([m, m2], [o, o2])


def test_several_optimizers_in_one_scale_loss_all_get_true_gradients() -> None:
    models, optimizers = zip(pair(), pair(), strict=True)
    models, optimizers = amp.initialize(list(models), list(optimizers), max_loss_scale=1024.0)
    backward(nn.Sequential(*models), optimizers, 3.0)
    assert [m.weight.grad.item() for m in models] == [3, 3]
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1


def test_models_of_two_calls_both_work_and_the_scales_are_the_last_call_s() -> None:
    first = started(num_losses=2)
    second = started()
    for model, optimizer in (first, second):
        backward(model, optimizer)
        optimizer.step()
        assert model.weight.item() == 0.875
    assert len(scales()) == 1
    amp.reset()
    assert not any("forward" in vars(model) for model, _ in (first, second))


# enabled=False


def test_disabled_changes_nothing_whatever_else_is_passed() -> None:
    model, optimizer = pair()
    model.half()
    before = [dict(vars(thing)) for thing in (model, optimizer)]
    names = wrapped_names()
    assert amp.initialize(model, optimizer, enabled=False, opt_level="whatever", loss_scale="x") == (
        model,
        optimizer,
    )
    assert amp.initialize(model, enabled=False) is model
    assert [dict(vars(thing)) for thing in (model, optimizer)] == before
    assert wrapped_names() == names
    assert amp.state_dict() == {}
    assert list(amp.master_params(optimizer)) == [model.weight]


def test_disabled_scale_loss_gives_the_loss_itself_for_any_optimizer() -> None:
    model, optimizer = amp.initialize(*pair(), enabled=False)
    loss = model(torch.ones(1, 1)).sum()
    with amp.scale_loss(loss, optimizer, loss_id=7) as scaled:
        assert scaled is loss


# scale_loss


def test_scaled_loss_is_fp32_times_the_scale() -> None:
    _, optimizer = started(loss_scale=64.0)
    loss = torch.tensor(1.5, dtype=HALF, requires_grad=True)
    with amp.scale_loss(loss, optimizer) as scaled:
        assert (scaled.item(), scaled.dtype) == (96, FLOAT)


def test_scale_of_one_gives_the_loss_in_fp32_and_leaves_gradients_alone() -> None:
    model, optimizer = started("O0")
    model.weight.grad = own = torch.ones(1, 1)
    loss = model(torch.ones(1, 1)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
        assert model.weight.grad is own
    half = torch.ones((), dtype=HALF, requires_grad=True)
    with amp.scale_loss(half, optimizer) as scaled:
        assert scaled.dtype is FLOAT


def test_gradients_are_set_aside_and_added_in_their_own_memory() -> None:
    model, optimizer = started()
    model.weight.grad = own = torch.full((1, 1), 5.0)
    loss = model(torch.ones(1, 1)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert model.weight.grad is None
        scaled.backward()
    assert model.weight.grad is own
    assert own.item() == 6


def test_accumulation_is_right_when_the_scale_moves_in_between() -> None:
    model, optimizer = started()
    backward(model, optimizer, 3.0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 16.0, "unskipped": 0}})
    backward(model, optimizer, 4.0)
    assert model.weight.grad.item() == 7


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(-8, 8), st.booleans()), max_size=6), st.sampled_from(["O1", "O2"]))
def test_delayed_and_normal_calls_in_any_order_give_the_sum(calls, level) -> None:
    model, optimizer = started(level, loss_scale=256.0)
    try:
        for factor, delay in [*calls, (2, False)]:
            backward(model, optimizer, factor, delay_unscale=delay)
        assert next(amp.master_params(optimizer)).grad.item() == sum(factor for factor, _ in calls) + 2
    finally:
        amp.reset()


def test_overflow_of_a_delayed_call_is_seen_by_the_next() -> None:
    model, optimizer = started()
    backward(model, optimizer, INF, delay_unscale=True)
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 1
    assert scales() == [512]


def test_overflow_of_a_delayed_check_is_not_lost() -> None:
    model, optimizer = started()
    backward(model, optimizer, INF, delay_overflow_check=True)
    assert scales() == [1024]
    optimizer.zero_grad()
    backward(model, optimizer)
    assert scales() == [512]
    optimizer.step()
    assert model.weight.item() == 1


def test_stashed_gradients_of_an_optimizer_that_a_delayed_call_does_not_reach_survive() -> None:
    (first, a), (second, b) = pair(), pair()
    amp.initialize([first, second], [a, b], loss_scale=4.0)
    backward(nn.Sequential(first, second), [a, b])
    backward(first, [a, b], delay_unscale=True)
    assert second.weight.grad.item() == 1
    backward(nn.Sequential(first, second), [a, b])
    assert [first.weight.grad.item(), second.weight.grad.item()] == [3, 2]


def test_each_loss_has_its_own_scale() -> None:
    model, optimizer = started(num_losses=3)
    backward(model, optimizer, INF, loss_id=1)
    assert scales() == [1024, 512, 1024]
    assert [s["unskipped"] for s in amp.state_dict().values()] == [0, 0, 0]
    backward(model, optimizer, loss_id=2)
    assert [s["unskipped"] for s in amp.state_dict().values()] == [0, 0, 1]


def test_scale_starts_at_the_ceiling_and_stays_above_the_floor() -> None:
    model, optimizer = started(max_loss_scale=8.0, min_loss_scale=4.0)
    found = []
    for _ in range(3):
        found += scales()
        backward(model, optimizer, INF)
    assert found + scales() == [8, 4, 4, 4]


def test_scale_doubles_after_2000_backwards_up_to_the_ceiling() -> None:
    model, optimizer = started(max_loss_scale=2.0**10)
    for before, after in ((256.0, 512.0), (1024.0, 1024.0)):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": before, "unskipped": 1999}})
        backward(model, optimizer)
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": after, "unskipped": 0}


def test_gradients_dropped_after_a_delayed_call_do_not_come_back() -> None:
    model, optimizer = started()
    backward(model, optimizer, 2.0)
    backward(model, optimizer, 3.0, delay_unscale=True)
    model.zero_grad()
    backward(model, optimizer, 5.0)
    assert model.weight.grad.item() == 5


@pytest.mark.parametrize("sparse", [(True, False), (False, True), (True, True)])
def test_sparse_gradients_add_up_with_sparse_and_dense_ones(sparse) -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    amp.initialize(embedding, optimizer, loss_scale=8.0)
    for is_sparse in sparse:
        rows = embedding(torch.tensor([0, 0])) if is_sparse else embedding.weight
        with amp.scale_loss(rows.sum(), optimizer) as scaled:
            scaled.backward()
    expected = [sum(2.0 if s else 1.0 for s in sparse)] + [float(sparse.count(False))] * 2
    assert embedding.weight.grad.to_dense()[:, 0].tolist() == expected


def test_error_inside_scale_loss_restores_gradients_and_leaves_the_schedule() -> None:
    model, optimizer = started()
    backward(model, optimizer, 2.0)
    loss = model(torch.ones(1, 1)).sum()
    with pytest.raises(RuntimeError, match="after the gradient"):
        backward_that_fails(loss, optimizer)
    assert model.weight.grad.item() == 2
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1


# state dict


def test_state_dict_has_apex_s_format() -> None:
    started(num_losses=2)
    state = amp.state_dict()
    assert list(state) == ["loss_scaler0", "loss_scaler1"]
    assert state["loss_scaler0"] == {"loss_scale": 1024.0, "unskipped": 0}
    assert type(state["loss_scaler0"]["loss_scale"]) is float
    assert type(state["loss_scaler0"]["unskipped"]) is int


def test_state_round_trip() -> None:
    model, optimizer = started(num_losses=2)
    backward(model, optimizer, INF, loss_id=1)
    backward(model, optimizer, loss_id=1)
    state = amp.state_dict()
    amp.reset()
    started(num_losses=2)
    amp.load_state_dict(state)
    assert amp.state_dict() == state
    assert scales() == [1024, 512]


@pytest.mark.parametrize(("saved", "used"), [(1, 2), (3, 2)])
def test_state_of_another_number_of_losses_warns_and_loads_what_both_have(saved, used) -> None:
    started(num_losses=used)
    state = {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": i} for i in range(saved)}
    with pytest.warns(UserWarning, match=rf"contains {saved} entries, while {used} loss_scalers"):
        amp.load_state_dict(state)
    expected = [1, 1024] if saved < used else [1, 2]
    assert scales() == expected


@pytest.mark.parametrize("key", ["scale", ""])
def test_foreign_keys_are_refused_and_nothing_is_loaded(key: str) -> None:
    started()
    with pytest.raises(RuntimeError, match=rf"Unexpected key\(s\) in state_dict: {key}\.$"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0, "unskipped": 0}, key: 1.0})
    assert scales() == [1024]


# errors


def test_scale_loss_before_initialize_is_refused() -> None:
    model, optimizer = pair()
    with (
        pytest.raises(RuntimeError, match="has not been initialized"),
        amp.scale_loss(model(torch.ones(1, 1)), optimizer),
    ):
        pass


def test_unknown_optimizer_is_refused_by_scale_loss() -> None:
    model, _ = started()
    _, stranger = pair()
    with pytest.raises(RuntimeError, match="never saw"):
        backward(model, stranger)


@pytest.mark.parametrize("loss_id", [1, -1, "0", 7])
def test_loss_id_out_of_range_is_refused(loss_id) -> None:
    model, optimizer = started()
    with pytest.raises(IndexError, match="num_losses=1"):
        backward(model, optimizer, loss_id=loss_id)


@pytest.mark.parametrize("level", ["01", "o1", None])
def test_unknown_level_is_refused_and_nothing_happened(level) -> None:
    model, optimizer = pair()
    with pytest.raises(RuntimeError, match="letter O"):
        amp.initialize(model, optimizer, opt_level=level)
    assert "forward" not in vars(model)
    amp.initialize(model, optimizer)


@pytest.mark.parametrize(
    ("models", "optimizers"),
    [
        ("model", None),
        (None, None),
        ([1], None),
        (line(), "SGD"),
        (line(), [line()]),
        (line(), line().parameters()),
    ],
)
def test_other_things_than_models_and_optimizers_are_a_type_error(models, optimizers) -> None:
    with pytest.raises(TypeError, match="must be either a single"):
        amp.initialize(models, optimizers)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float64])
def test_model_that_is_not_fp32_is_refused(dtype) -> None:
    with pytest.raises(RuntimeError, match=r"Found param weight with type .*expected float32"):
        amp.initialize(line().to(dtype))


def test_model_in_a_parallel_wrapper_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"instance of DataParallel.*AFTER"):
        amp.initialize(nn.DataParallel(line()))
    wrapper = nn.parallel.DistributedDataParallel
    with pytest.raises(RuntimeError, match=r"instance of DistributedDataParallel.*AFTER"):
        amp.initialize(wrapper.__new__(wrapper))


@pytest.mark.parametrize("level", LEVELS)
def test_model_or_optimizer_is_initialized_once(level) -> None:
    model, optimizer = pair()
    amp.initialize(model, optimizer, opt_level=level)
    with pytest.raises(RuntimeError, match="same optimizer was given"):
        amp.initialize(line(), optimizer, opt_level=level)
    amp.reset()
    amp.initialize(model, optimizer, opt_level=level)


def test_duplicates_in_one_call_are_refused() -> None:
    model, optimizer = pair()
    with pytest.raises(RuntimeError, match="same model"):
        amp.initialize([model, model], optimizer)
    with pytest.raises(RuntimeError, match="same optimizer"):
        amp.initialize(model, [optimizer, optimizer])


@pytest.mark.parametrize("options", [{"casts": "never"}, {"num_losses": 0}, {"num_losses": 1.5}])
def test_bad_option_is_a_value_error_that_names_it(options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        amp.initialize(line(), **options)


# casts


@pytest.mark.parametrize("where", ["everywhere", "forward"])
def test_functions_outside_the_forward_follow_the_lists_or_not(where) -> None:
    model, _ = started(casts=where)
    out = model(torch.ones(1, 1))
    assert out.dtype is HALF
    assert matmul_type() is (HALF if where == "everywhere" else FLOAT)
    assert F.mse_loss(out, out).dtype is (FLOAT if where == "everywhere" else HALF)


def test_disable_casts_holds_inside_o1() -> None:
    started()
    with amp.disable_casts():
        assert matmul_type() is FLOAT
        with amp.casts():
            assert matmul_type() is HALF
        assert matmul_type() is FLOAT
    assert matmul_type() is HALF


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_other_levels_cast_no_functions(level) -> None:
    started(level)
    assert matmul_type() is FLOAT


def test_o1_without_patched_functions_casts_outputs_only() -> None:
    model, _ = started(patch_torch_functions=False, cast_model_outputs=HALF)
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(matmul_type()))
    assert model(torch.ones(1, 1)).dtype is HALF
    assert seen == [FLOAT]


@pytest.mark.parametrize("level", LEVELS)
def test_cast_model_outputs(level) -> None:
    model, _ = started(level, cast_model_outputs=torch.float64)
    assert model(torch.ones(1, 1)).dtype is torch.float64


@pytest.mark.parametrize(("level", "kept"), [("O2", "False"), ("O2", False), ("O3", "True"), ("O3", True)])
def test_batchnorm_override(level, kept) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    amp.initialize(model, opt_level=level, keep_batchnorm_fp32=kept)
    assert model[0].weight.dtype is HALF
    assert model[1].weight.dtype is (FLOAT if kept in (True, "True") else HALF)
    assert model(torch.randn(4, 2)).isfinite().all()


def test_o0_casts_inputs_to_fp32() -> None:
    model, _ = started("O0")
    assert model(torch.ones(1, 1, dtype=HALF)).dtype is FLOAT
    assert model(torch.ones(1, 1, dtype=torch.float64)).dtype is FLOAT


def test_banned_function_is_refused_unless_allowed() -> None:
    started()
    p = torch.full((1,), 0.5, dtype=HALF)
    with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p, p)
    amp.reset()
    started(allow_banned=True)
    assert F.binary_cross_entropy(p, p).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("allowed", [True, False])
def test_banned_function_inside_a_forward_is_refused_unless_allowed(allowed) -> None:
    class Loss(nn.Module):
        def forward(self, p):
            return F.binary_cross_entropy(p, p)

    model = amp.initialize(Loss(), casts="forward", allow_banned=allowed)
    with nullcontext() if allowed else pytest.raises(NotImplementedError, match="with_logits"):
        model(torch.full((1,), 0.5, dtype=HALF))


def test_other_threads_follow_the_lists_too() -> None:
    model, _ = started()
    found = []
    thread = threading.Thread(target=lambda: found.extend((matmul_type(), model(torch.ones(1, 1)).dtype)))
    thread.start()
    thread.join()
    assert found == [HALF, HALF]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["everywhere", "forward"])
def test_activation_checkpointing_runs_again_under_the_same_casts(reentrant, where) -> None:
    seen = []

    class Inner(nn.Linear):
        def forward(self, x):
            seen.append(matmul_type())
            return super().forward(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(2, 1)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, loss_scale=4.0, casts=where)
    loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    assert seen == [HALF, HALF]
    assert model.inner.weight.grad.tolist() == [[1, 1]]


def test_evaluation_sees_edited_weights() -> None:
    model, _ = started()
    with torch.no_grad():
        before = model(torch.ones(1, 1)).item()
        model.weight.data.fill_(3)
        assert (before, model(torch.ones(1, 1)).item()) == (1, 3)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_copied_model_still_casts_with_its_own_weights(level, how) -> None:
    model, _ = started(level)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        twin.weight.fill_(3)
    assert twin(torch.ones(1, 1)).item() == 3
    assert twin(torch.ones(1, 1)).dtype is (HALF if level == "O1" else FLOAT)
    assert twin.state_dict()["weight"].dtype is FLOAT
    assert model(torch.ones(1, 1)).item() == 1


def test_backend_beside_the_module_changes_neither_scale_nor_casts() -> None:
    model, optimizer = started()
    other, theirs = pair()
    precision = build_precision("apex_o1", loss_scale="dynamic", init_scale=64.0)
    precision.prepare(other, theirs)
    with precision.session():
        with precision.forward_context():
            loss = other(torch.ones(1, 1)).sum() * INF
        assert matmul_type() is HALF
        precision.backward(loss)
        precision.step(theirs)
    assert matmul_type() is HALF
    assert scales() == [1024]
    assert precision.scale_factor().item() == 32
    backward(model, optimizer)
    optimizer.step()
    assert (model.weight.item(), other.weight.item()) == (0.875, 1)
    amp.reset()
    with precision.forward_context():
        assert matmul_type() is HALF
    assert matmul_type() is FLOAT


# registering


class Library:
    """A namespace as users have it."""

    @staticmethod
    def twice(x, y=0):
        return x + x + y


@pytest.fixture
def library():
    class Fresh(Library):
        pass

    return Fresh


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("register", "given_type", "result"),
    [
        (amp.register_half_function, FLOAT, HALF),
        (amp.register_float_function, HALF, FLOAT),
        (amp.register_promote_function, HALF, HALF),
    ],
)
def test_registered_function_follows_its_rule(library, when, register, given_type, result) -> None:
    before = set(vars(library))
    if when == "before":
        register(library, "twice")
        started()
    else:
        started()
        register(library, "twice")
    assert library.twice(torch.ones(1, dtype=given_type)).dtype is result
    with amp.disable_casts():
        assert library.twice(torch.ones(1, dtype=given_type)).dtype is given_type
    amp.reset()
    assert set(vars(library)) == before
    assert library.twice(torch.ones(1, dtype=given_type)).dtype is given_type


def test_listed_function_can_be_moved_and_comes_back() -> None:
    original = torch.mm
    amp.register_float_function(torch, "mm")
    started()
    assert matmul_type() is FLOAT
    assert torch.mm(torch.ones(1, 1, dtype=HALF), torch.ones(1, 1)).dtype is FLOAT
    amp.reset()
    assert torch.mm is original
    started()
    assert matmul_type() is HALF


@pytest.mark.parametrize(
    "register", [amp.register_half_function, amp.register_float_function, amp.register_promote_function]
)
def test_unknown_name_is_a_value_error(register) -> None:
    with pytest.raises(ValueError, match="No function named nothing in module torch"):
        register(torch, "nothing")


def test_decorated_functions_follow_their_rule_while_casts_are_on() -> None:
    @amp.half_function
    def low(x):
        """Documented."""
        return x.dtype

    @amp.float_function
    def high(x, *, y):
        return x.dtype, y.dtype

    @amp.promote_function
    def widest(x, y):
        return x.dtype, y.dtype

    class Model(nn.Module):
        @amp.half_function
        def forward(self, x):
            return x.dtype

    one, half = torch.ones(1), torch.ones(1, dtype=HALF)
    assert (low(one), high(half, y=half), widest(half, one)) == (FLOAT, (HALF, HALF), (HALF, FLOAT))
    model = amp.initialize(Model())
    assert (low(one), high(half, y=half), widest(half, one)) == (HALF, (FLOAT, FLOAT), (FLOAT, FLOAT))
    assert model(one) is HALF
    assert low.__doc__ == "Documented."


# reset


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["everywhere", "forward"])
def test_reset_leaves_every_wrapped_name_and_the_model_as_before(level, where) -> None:
    names = wrapped_names()
    model, optimizer = pair()
    weight, before = model.weight, set(vars(model))
    amp.initialize(model, optimizer, opt_level=level, casts=where, max_loss_scale=1024.0)
    assert (wrapped_names() != names) is (level == "O1")
    backward(model, optimizer)
    optimizer.step()
    amp.reset()
    assert wrapped_names() == names
    assert set(vars(model)) == before
    assert model.weight is weight
    assert weight.dtype is FLOAT
    assert weight.item() == 0.875
    assert optimizer.param_groups[0]["params"] == [weight]
    assert model(torch.ones(1, 1, dtype=FLOAT)).dtype is FLOAT


def test_scale_loss_after_reset_is_refused() -> None:
    model, optimizer = started()
    amp.reset()
    with pytest.raises(RuntimeError, match="has not been initialized"):
        backward(model, optimizer)


@pytest.mark.parametrize("first", LEVELS)
@pytest.mark.parametrize("second", LEVELS)
def test_any_level_can_follow_any_other_after_reset(first, second) -> None:
    model, optimizer = pair(momentum=0.5)
    for level in (first, second):
        amp.initialize(model, optimizer, opt_level=level, loss_scale=64.0)
        backward(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        amp.reset()
    assert model.weight.item() == 1 - 0.125 - 0.125 * 1.5
    assert model.weight.dtype is FLOAT
