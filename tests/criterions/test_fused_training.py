"""The fused loss in full training runs: it changes their speed, not their curve."""

import re

import pytest
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch.nn.parallel import DistributedDataParallel

import commands
import toy
from fairseq_sparse.criterions.sparse_criterion import EntmaxLossCriterion

UNUSED = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$")


def curve(records, key="train_loss"):
    return [float(record[key]) for record in records]


@pytest.mark.slow_except("alpha_relu-flags0")
@pytest.mark.parametrize(
    "transform, flags",
    [
        ("alpha_relu", ("--output-tau", "weights")),
        ("entmax15", ("--label-smoothing", "0.1", "--update-freq", "2")),
        ("entmax15", ("--checkpoint-activations", "--clip-norm", "0.5")),
    ],
)
def test_both_losses_give_the_same_training_curve(transform, flags, data, tmp_path):
    curves = []
    for more in ((), ("--no-fused-loss",)):
        result = commands.train(
            data,
            tmp_path / ("unfused" if more else "fused"),
            *(*commands.output_flags(transform), "--max-epoch", "3", "--no-save", *flags, *more),
        )
        output = result.stdout + result.stderr
        curves.append(curve(commands.logged(output, "train")))
        assert len(curves[-1]) == 3 and curves[-1][2] < curves[-1][0]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


@pytest.mark.slow
def test_two_workers_with_untied_weights_train_alike(data, tmp_path):
    flags = (*commands.output_flags("entmax15"), "--max-epoch", 2, "--max-tokens", 400, "--no-save")
    curves = []
    for more in ((), ("--no-fused-loss",)):
        outputs = commands.train_on_two_workers(data, tmp_path, *flags, *more)
        curves.append(curve(commands.logged("".join(outputs), "train")))
        assert len(curves[-1]) == 2  # fairseq logs on one worker
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("flags", [(), ("--share-all-embeddings",)])
def test_pytorch_s_distributed_wrapper_sees_every_parameter(find_unused, flags, process_group):
    """The loss is computed within the model's forward pass, which the wrapper tracks."""
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    gradients = []
    for wrapped in (True, False):
        model = toy.model("--output-transform", "entmax15", "--dropout", 0, *flags, for_task=task)
        criterion = EntmaxLossCriterion(task, 0.0, False, False)
        for name, parameter in model.named_parameters():
            # fairseq 0.12.2 has these parameters, which no model uses; even its own models need
            # --find-unused-parameters because of them.
            if UNUSED.search(name):
                parameter.requires_grad_(False)
        outer = model
        if wrapped:
            outer = ModuleProxyWrapper(
                DistributedDataParallel(model, find_unused_parameters=find_unused)
            )
        for _ in range(2):  # the second pass fails if the first left a parameter out
            model.zero_grad()
            criterion(outer.train(), sample)[0].backward()
        used = {name: x for name, x in model.named_parameters() if x.grad is not None}
        gradients.append({name: x.grad for name, x in used.items()})
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_gets_the_gradients_of_the_unfused_loss(dtype):
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    gradients = []
    for unfused in (False, True):
        model = toy.model("--output-transform", "entmax15", "--dropout", 0, for_task=task)
        model = model.to(dtype).train()
        try:
            model(**sample["net_input"])
        except RuntimeError as error:
            pytest.skip(f"this version of PyTorch: {error}")
        loss = EntmaxLossCriterion(task, 0.0, unfused, False)(model, sample)[0]
        (loss * 128).backward()  # as fairseq scales it
        assert loss.dtype == torch.float32
        found = [x.grad for x in model.parameters() if x.grad is not None]
        assert {x.dtype for x in found} == {dtype}
        gradients.append(torch.cat([x.float().flatten() for x in found]))
    fused, expected = gradients
    assert (fused - expected).norm() / expected.norm() < (0.01 if dtype == torch.float16 else 0.05)


def test_autocast_trains_with_the_fused_loss():
    task = toy.task()
    model = toy.model("--output-transform", "entmax15", "--dropout", 0, for_task=task).train()
    criterion = EntmaxLossCriterion(task, 0.0, False, False)
    sample = toy.batch(task.target_dictionary)
    exact = criterion(model, sample)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model, sample)[0]
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    assert gradients and all(torch.isfinite(x).all() for x in gradients)
