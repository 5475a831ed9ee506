import json

import pytest
import torch

from paper import tangent_kernel


def logits(network: tangent_kernel.Network, inner: torch.Tensor, outer: torch.Tensor):
    return (network.x @ inner.T).relu() @ outer.T


def make_network(width: int) -> tangent_kernel.Network:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return tangent_kernel.Network(x, width, generator)


def test_kernel_is_the_product_of_the_jacobians():
    network = make_network(6)
    # The parameters are standard normal, and the factors in front of them are not trained.
    scales = (1.0, 6**-0.5)
    jacobians = torch.autograd.functional.jacobian(
        lambda inner, outer: logits(network, inner * scales[0], outer * scales[1]),
        (network.inner / scales[0], network.outer / scales[1]),
    )
    flat = torch.cat([part.flatten(2).flatten(0, 1) for part in jacobians], dim=1)
    torch.testing.assert_close(network.kernel(), flat @ flat.T)


def test_a_small_step_moves_the_logits_as_the_kernel_says():
    network = make_network(50)
    before, kernel = network.logits(), network.kernel()
    residual = torch.randn(before.shape, dtype=torch.float64)
    network.step(residual, 1e-7)
    moved = (network.logits() - before) / -1e-7
    torch.testing.assert_close(
        moved, (kernel @ residual.flatten()).view_as(moved), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("output", tangent_kernel.OUTPUTS)
def test_wider_networks_follow_their_first_kernel_more_closely(output):
    narrow, wide = (tangent_kernel.train(output, width, 60, 1) for width in (30, 3000))
    for name in ("drift", "derivative", "logits"):
        assert wide[name] < narrow[name] / 3
    assert wide["loss"] < 0.9


def test_command_writes_numbers_and_pictures(tmp_path, capsys):
    arguments = ["--output", str(tmp_path / "a" / "ntk"), "--widths", "8,16", "--steps", "5"]
    assert tangent_kernel.main([*arguments, "--seeds", "2"]) == 0
    results = json.loads((tmp_path / "a" / "ntk.json").read_text())["results"]
    assert [(row["output"], row["width"]) for row in results] == [
        (output, width) for width in (8, 16) for output in tangent_kernel.OUTPUTS
    ]
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".json", ".png", ".svg"}
    assert capsys.readouterr().out.count("\n") >= 8
