"""Reference models: published parameter counts, every shape of image, refusals."""

import pytest
import torch

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, ImageShape
from sweep.training.models.build import build_model, num_parameters
from sweep.training.models.resnets import GlobalPool, PadShortcut

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


def test_stem_follows_the_image_size() -> None:
    small, large = (build_model(ModelSection(name="resnet18"), shape) for shape in (CIFAR, ImageShape(3, 96, 10)))
    assert small.get_submodule("conv1").stride == (1, 1)
    assert isinstance(small.get_submodule("maxpool"), torch.nn.Identity)
    assert large.get_submodule("conv1").stride == (2, 2)


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
