"""Reference models: published parameter counts, every shape of image; what their blocks do to gradients."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, ImageShape
from sweep.training.models.build import (
    add_stochastic_depth,
    build_model,
    checkpoint_blocks,
    find_residual_blocks,
    find_stages,
    num_parameters,
)
from sweep.training.models.resnets import GhostBatchNorm2d, GlobalPool, PadShortcut

CIFAR = ImageShape(3, 32, 10)
IMAGENET = ImageShape(3, 224, 1000)
DIGITS = ImageShape(1, 8, 10)


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        # He et al. 2015, table 6: 0.27 M and 0.85 M
        ("resnet20", CIFAR, 269_722),
        ("resnet56", CIFAR, 853_018),
        # torchvision's model pages, timm for the two smaller ViTs
        ("resnet18", IMAGENET, 11_689_512),
        ("resnet50", IMAGENET, 25_557_032),
        ("vit_base", IMAGENET, 86_567_656),
        ("vit_small", IMAGENET, 22_050_664),
        ("vit_tiny", IMAGENET, 5_717_416),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, shape: ImageShape, count: int) -> None:
    with torch.device("meta"):
        assert num_parameters(build_model(ModelSection(name=name), shape)) == count


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {"vit_base", "vit_small", "resnet56"}])
@pytest.mark.parametrize("shape", [DIGITS, CIFAR, ImageShape(1, 28, 7)])
def test_models_take_small_images(name: str, shape: ImageShape) -> None:
    model = build_model(ModelSection(name=name, norm="group", dropout=0.1), shape).eval()
    with torch.no_grad():
        assert model(torch.randn(2, shape.channels, shape.side, shape.side)).shape == (2, shape.num_classes)


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_norm_decides_whether_images_of_a_batch_see_each_other(norm: str) -> None:
    torch.manual_seed(0)
    model = build_model(ModelSection.model_validate({"name": "resnet8", "norm": norm}), DIGITS).train()
    images = torch.randn(4, 1, 8, 8)
    changed = images.clone()
    changed[1:] += 1.0
    first, second = model(images)[0], model(changed)[0]
    assert torch.allclose(first, second, atol=1e-6) == (norm != "batch")


def test_pad_shortcut_is_option_a() -> None:
    images = torch.arange(2.0 * 4 * 4).reshape(1, 2, 4, 4)
    out = PadShortcut(2)(images)
    assert out.shape == (1, 4, 2, 2)
    assert torch.equal(out[:, 1:3], images[:, :, ::2, ::2])
    assert not out[:, [0, 3]].any()


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_gradients_keep_channels_last(name: str) -> None:
    # a gradient in another layout than its activation costs an order of magnitude in element-wise kernels
    torch.manual_seed(0)
    model = build_model(ModelSection(name=name), CIFAR).to(memory_format=torch.channels_last)
    layouts: list[bool] = []

    def watch(_module: object, _inputs: object, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: layouts.append(grad.is_contiguous(memory_format=torch.channels_last)))

    for module in model.modules():
        if type(module).__name__ == "BasicBlock":
            module.register_forward_hook(watch)
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    model(images).square().sum().backward()
    assert len(layouts) >= 3
    assert all(layouts)


def test_layers_compute_the_same_in_both_layouts() -> None:
    torch.manual_seed(0)
    for layer in (GlobalPool(), PadShortcut(6)):
        plain = torch.randn(4, 6, 5, 5, dtype=torch.float64, requires_grad=True)
        last = plain.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        outputs = [layer(images) for images in (plain, last)]
        assert torch.allclose(*outputs, rtol=0, atol=1e-15)
        weight = torch.randn_like(outputs[0])
        pairs = zip(outputs, (plain, last), strict=True)
        gradients = [torch.autograd.grad((out * weight).sum(), x) for out, x in pairs]
        assert torch.allclose(gradients[0][0], gradients[1][0], rtol=0, atol=1e-15)
    assert torch.equal(GlobalPool()(plain), torch.nn.AdaptiveAvgPool2d(1)(plain))


def test_dropout_is_in_the_head_and_off_in_evaluation() -> None:
    model = build_model(ModelSection(dropout=0.5, norm="layer"), DIGITS)
    images = torch.randn(2, 1, 8, 8)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


@pytest.mark.parametrize(
    ("size", "side", "patches"), [(None, 8, 16), (None, 28, 49), (None, 32, 64), (None, 96, 144), (2, 8, 16), (4, 8, 4)]
)
def test_patches_follow_the_image_size_or_are_as_given(size: int | None, side: int, patches: int) -> None:
    model = build_model(ModelSection(name="vit_micro", patch_size=size), ImageShape(1, side, 10))
    assert model.encoder.pos_embedding.shape == (1, patches + 1, 64)
    assert model(torch.randn(3, 1, side, side)).shape == (3, 10)


@pytest.mark.parametrize(("values", "side", "message"), [
    *(({"name": "vit_micro", "patch_size": size}, 8, f"model.patch_size = {size}, but the images have 8 pixels")
      for size in (3, 8, 16)),
    ({"name": "vit_micro"}, 31, "31"), ({"name": "resnet8"}, 2, "2"), ({"name": "resnet18"}, 4, "4"),
])  # fmt: skip
def test_images_that_do_not_fit_are_refused(values: dict[str, object], side: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(ModelSection.model_validate(values), ImageShape(3, side, 10))


def model(name: str = "resnet8", shape: ImageShape = DIGITS, **values: object) -> nn.Module:
    torch.manual_seed(0)
    return build_model(ModelSection.model_validate({"name": name, **values}), shape).double()


def images(count: int, shape: ImageShape = DIGITS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, shape.channels, shape.side, shape.side, generator=generator, dtype=torch.float64)


def backward(network: nn.Module, batch: Tensor, share: float = 1.0) -> None:
    target = torch.linspace(0, 1, 10, dtype=torch.float64)
    ((network(batch) - target).square().mean() * share).backward()


def gradients(network: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def statistics(network: nn.Module) -> Tensor:
    return torch.cat([buffer.double().flatten() for buffer in network.buffers()])


def test_ghost_norm_is_batch_norm_of_smaller_micro_batches() -> None:
    ghost, batch = model(norm="ghost", ghost_batch=16), model(norm="batch")
    whole = images(64)
    backward(ghost, whole)
    for part in whole.split(16):
        backward(batch, part, share=16 / 64)
    assert gradients(batch).abs().max() > 1e-3
    assert torch.allclose(gradients(ghost), gradients(batch), rtol=0, atol=1e-12)
    assert torch.allclose(statistics(ghost), statistics(batch), rtol=0, atol=1e-12)
    plain = model(norm="batch")
    backward(plain, whole)
    assert not torch.allclose(gradients(ghost), gradients(plain), atol=1e-4)


@pytest.mark.parametrize(("count", "sizes"), [(50, (16, 16, 18)), (20, (20,)), (7, (7,)), (32, (16, 16))])
def test_a_rest_joins_the_last_ghost(count: int, sizes: tuple[int, ...]) -> None:
    norm, batch = GhostBatchNorm2d(3, 16), torch.randn(count, 3, 2, 2)
    out = norm(batch)
    expected = [(part - part.mean((0, 2, 3), keepdim=True)) for part in batch.split(sizes)]
    expected = [part / (part.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt() for part in expected]
    assert torch.allclose(out, torch.cat(expected), atol=1e-5)
    assert norm.num_batches_tracked == len(sizes)


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet8", DIGITS), ("resnet20", DIGITS), ("resnet18", CIFAR), ("vit_micro", DIGITS)]
)
def test_stochastic_depth_skips_branches_by_sample_and_more_at_the_end(name: str, shape: ImageShape) -> None:
    plain = model(name, shape, norm="group")
    network = model(name, shape, norm="group", stochastic_depth=0.5)
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(network.eval()(images(4, shape)), plain.eval()(images(4, shape)))
    blocks = find_residual_blocks(network)
    for block, probability in ((blocks[0], 0.5 / len(blocks)), (blocks[-1], 0.5)):
        end = block.get_submodule("dropout" if name == "vit_micro" else "bn2").train()
        torch.manual_seed(0)
        branch = torch.ones(2000, 16, 1, 1) if name == "vit_micro" else torch.randn(2000, end.weight.numel(), 1, 1)  # type: ignore[union-attr,operator]
        kept = end(branch.double()).flatten(1).abs().sum(1) > 0
        assert kept.double().mean() == pytest.approx(1 - probability, abs=0.04)


def test_what_stochastic_depth_keeps_is_scaled_to_the_same_mean() -> None:
    network = model(stochastic_depth=0.25, norm="group")
    end = find_residual_blocks(network)[-1].get_submodule("bn2").train()
    batch = torch.randn(8000, 64, 1, 1, dtype=torch.float64)
    out = end(batch)
    end.eval()
    plain = end(batch)
    assert torch.allclose(out[out.abs().sum((1, 2, 3)) > 0], (plain / 0.75)[out.abs().sum((1, 2, 3)) > 0])
    assert out.abs().mean().item() == pytest.approx(plain.abs().mean().item(), rel=0.02)


class CustomBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(3, 3, dtype=torch.float64)
        self.branch_ends = [self.branch]

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.as_tensor(self.branch(inputs))


def test_a_custom_model_lists_its_blocks_and_the_ends_of_their_branches() -> None:
    network = nn.Sequential(CustomBlock(), CustomBlock())
    network.blocks = nn.ModuleList(network)
    add_stochastic_depth(network, 0.999, "mine")
    batch = torch.randn(64, 3, dtype=torch.float64)
    skipped = (network[1].train()(batch) == batch).all(1)
    assert skipped.sum() > 48
    assert not (network[1].eval()(batch) == batch).all(1).any()


@pytest.mark.parametrize(
    ("name", "norm", "dropout"), [("resnet8", "batch", 0.0), ("resnet8", "ghost", 0.3), ("vit_micro", "batch", 0.3)]
)
def test_checkpointing_changes_neither_gradients_nor_statistics(name: str, norm: str, dropout: float) -> None:
    plain = model(name, norm=norm, dropout=dropout, stochastic_depth=0.3, ghost_batch=8)
    checked = copy.deepcopy(plain)
    checkpoint_blocks(checked)
    for network in (plain, checked):
        torch.manual_seed(3)
        for _ in range(2):
            backward(network, images(24))
    assert torch.allclose(gradients(plain), gradients(checked), rtol=0, atol=1e-10)
    assert gradients(plain).abs().max() > 1e-4
    if name != "vit_micro":
        assert torch.equal(statistics(plain), statistics(checked))


def test_checkpointing_keeps_fewer_activations() -> None:
    def saved_bytes(network: nn.Module) -> int:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):  # type: ignore[func-returns-value]
            network(images(32))
        return sum(kept)

    checked = model("vit_micro")
    checkpoint_blocks(checked)
    assert saved_bytes(checked) < 0.2 * saved_bytes(model("vit_micro"))


@pytest.mark.parametrize(
    ("name", "shape", "count"), [("resnet8", DIGITS, 3), ("resnet18", CIFAR, 4), ("vit_micro", DIGITS, 4)]
)
def test_frozen_stages_stay_as_they_are(name: str, shape: ImageShape, count: int) -> None:
    network = model(name, shape, freeze_stages=2)
    assert len(find_stages(network)) == count
    before = copy.deepcopy(network.state_dict())
    frozen = {key for key, parameter in network.named_parameters() if not parameter.requires_grad}
    stem_and_two, third = find_stages(network)[:2], find_stages(network)[2]
    assert all(not parameter.requires_grad for stage in stem_and_two for parameter in stage.parameters())
    assert all(parameter.requires_grad for parameter in third.parameters())
    assert next(key for key, _ in network.named_parameters()) in frozen
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    backward(network, images(8, shape))
    optimizer.step()
    changed = {key for key, tensor in network.state_dict().items() if not torch.equal(tensor, before[key])}
    assert not changed & frozen
    if name != "vit_micro":  # running statistics of the frozen part rest, those of the rest move
        prefixes = {"resnet8": ("1.", "3.", "4."), "resnet18": ("bn1.", "layer1.", "layer2.")}[name]
        moved = {key for key in changed if "running_mean" in key}
        assert moved
        assert not any(key.startswith(prefixes) for key in moved)


@pytest.mark.slow
def test_a_compiled_checkpointed_model_is_the_plain_one() -> None:
    plain = model(norm="ghost", ghost_batch=8)
    checked = copy.deepcopy(plain)
    checkpoint_blocks(checked)
    forward = torch.compile(checked)
    for _ in range(2):
        backward(plain, images(24))
        target = torch.linspace(0, 1, 10, dtype=torch.float64)
        (forward(images(24)) - target).square().mean().backward()
    assert torch.allclose(gradients(plain), gradients(checked), rtol=0, atol=1e-10)
    assert torch.allclose(statistics(plain), statistics(checked), rtol=0, atol=1e-10)
