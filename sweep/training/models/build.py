"""Builds the model that a configuration names: stochastic depth, checkpointing, frozen stages, weights from a file."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, ImageShape, find_entry, resolve
from sweep.training.models.resnets import find_batch_norms, override_attributes
from sweep.training.vision import resnet, vision_transformer

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts save the weights
_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
_MAX_NAMED = 5
_BLOCKS = (resnet.BasicBlock, resnet.Bottleneck, vision_transformer.EncoderBlock)


def build_model(section: ModelSection, shape: ImageShape) -> nn.Module:
    """The model that ``section`` names in :data:`sweep.config.tables.MODELS`, for images of ``shape``, with fresh
    weights from torch's global generator.

    Over them come the weights of ``model.weights``, save a head of other classes; then stages are frozen. Raises
    ``InputError``: for an unknown model, one that cannot take such images, or weights that are not its own."""
    build = find_entry("model", section.name, MODELS).build
    if build is None:
        raise InputError(f"model {section.name!r} is known from records alone; give the file of its plug-in: --plugin.")
    model: nn.Module = resolve(build)(section, shape)
    if section.stochastic_depth:
        add_stochastic_depth(model, section.stochastic_depth, section.name)
    if section.weights is not None:
        _load_pretrained(model, section.weights)
    if section.freeze_stages:
        freeze_stages(model, section.freeze_stages, section.name)
    return model


def check_model(section: ModelSection, shape: ImageShape) -> None:
    """Raises ``InputError`` where the model that ``section`` names cannot take images of ``shape``; builds it without
    memory, and does not read ``model.weights``."""
    try:
        with torch.device("meta"):
            build_model(section.model_copy(update={"weights": None}), shape)
    except InputError:
        raise
    except Exception:  # a model that depends on the values of tensors; its training tells what is wrong
        return


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def find_residual_blocks(model: nn.Module) -> list[nn.Module]:
    """The residual blocks from the input to the output.

    A custom model may list them as ``blocks``, and each block, as ``branch_ends``, the modules whose output is added to
    the block's input; stochastic depth requires both.
    """
    listed = getattr(model, "blocks", None)
    return [module for module in model.modules() if isinstance(module, _BLOCKS)] if listed is None else list(listed)


def find_stages(model: nn.Module) -> list[nn.Module]:
    """The three or four stages of a ResNet, the blocks of a ViT; a custom model may list them as ``stages``."""
    listed = getattr(model, "stages", None)
    if listed is not None:
        return list(listed)
    children = [child for child in model.children() if isinstance(child, nn.Sequential)]
    stages: list[nn.Module] = [child for child in children if any(isinstance(module, _BLOCKS) for module in child)]
    return stages or find_residual_blocks(model)


def add_stochastic_depth(model: nn.Module, probability: float, name: str) -> None:
    """Makes each sample skip the residual branches of block l of L with ``probability`` * l / L while training.

    Huang et al. 2016 (arXiv:1603.09382). A kept branch is divided by its probability: evaluation needs no correction.
    Raises ``InputError``: where the model has no residual block, or the ends of its branches are not known."""
    blocks = [block for block in find_residual_blocks(model) if _branch_ends(block)]
    if not blocks:
        raise InputError(
            f"model {name} has no residual blocks with known branches, so model.stochastic_depth must be 0; a custom "
            "model lists its blocks as `blocks`, and each block the ends of its branches as `branch_ends`."
        )
    for index, block in enumerate(blocks, start=1):
        for end in _branch_ends(block):
            # a hook keeps the names of the weights as they are
            end.register_forward_hook(partial(_drop, probability * index / len(blocks)))


def _branch_ends(block: nn.Module) -> list[nn.Module]:
    # the modules whose output is added to the block's input
    listed = getattr(block, "branch_ends", None)
    if listed is not None:
        return list(listed)
    if isinstance(block, vision_transformer.EncoderBlock):
        return [block.get_submodule("dropout"), block.get_submodule("mlp")]
    if isinstance(block, resnet.Bottleneck):
        return [block.get_submodule("bn3")]
    return [block.get_submodule("bn2")] if isinstance(block, resnet.BasicBlock) else []


def _drop(probability: float, module: nn.Module, _inputs: Any, branch: Tensor) -> Tensor:
    if not module.training:
        return branch
    shape = (len(branch), *(1 for _ in branch.shape[1:]))
    kept = torch.empty(shape, dtype=branch.dtype, device=branch.device).bernoulli_(1 - probability)
    return branch * kept.div_(1 - probability)


def checkpoint_blocks(model: nn.Module) -> None:
    """Makes the blocks drop their activations and recompute them in the backward pass."""
    for block in find_residual_blocks(model) or list(model.children()):
        block.forward = partial(_recomputed, block, block.forward)


def _recomputed(block: nn.Module, forward: Callable[..., Any], *inputs: Any) -> Any:
    if not torch.is_grad_enabled() or not block.training:
        return forward(*inputs)
    if torch.compiler.is_compiling():  # the compiler keeps side effects out of the recomputation
        return checkpoint(forward, *inputs, use_reentrant=False)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=partial(_contexts, block))


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    # The second forward pass must not update the running statistics of batch norm again. It uses them nevertheless,
    # because it must save the same tensors as the first one.
    return nullcontext(), override_attributes(find_batch_norms(block), momentum=0.0, num_batches_tracked=None)


def freeze_stages(model: nn.Module, count: int, name: str) -> None:
    """Freezes everything up to the end of stage ``count``: no gradients, evaluation mode. Raises ``InputError``: where
    the model has fewer stages."""
    stages = find_stages(model)
    if count > len(stages):
        raise InputError(f"model.freeze_stages = {count}, but {name} has {len(stages)} stages; give at most that many.")
    last = {id(parameter) for parameter in stages[count - 1].parameters()}
    parameters = list(model.parameters())
    end = max(index for index, parameter in enumerate(parameters) if id(parameter) in last)
    for parameter in parameters[: end + 1]:
        parameter.requires_grad_(False)
    for module in model.modules():
        inside = list(module.parameters())
        if inside and not any(parameter.requires_grad for parameter in inside):
            module.eval()


def _load_pretrained(model: nn.Module, path: str) -> None:
    """Loads the weights of the file ``path`` into ``model``; a head with another number of classes is not loaded."""
    weights, expected = read_weights(path), model.state_dict()
    for prefix in _PREFIXES:
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    linears = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    head = linears[-1] if linears else ""
    weights = _rename_head(weights, set(expected), head)
    fitting = {name for name in weights.keys() & expected.keys() if weights[name].shape == expected[name].shape}
    fresh = {name for name in expected if name.rpartition(".")[0] == head and name not in fitting}
    if differing := sorted((weights.keys() | expected.keys()) - fresh - fitting):
        raise InputError(
            f"model.weights = {path!r} are not the weights of this model: {len(differing)} tensors are missing, too "
            f"many or of another shape, such as {', '.join(differing[:_MAX_NAMED])}. Check model.name, model.norm and "
            "the size and channels of the images."
        )
    model.load_state_dict({**expected, **{name: tensor for name, tensor in weights.items() if name not in fresh}})


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file that holds nothing but tensors in dictionaries.

    A torch file cannot run code: it is read by the reader that accepts nothing but tensors. Raises ``InputError``: for
    anything else."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"model.weights = {path!r} is not a file; give the path of a .safetensors or torch file.")
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may make a reader raise any error
        reason = str(error).partition("\n")[0]
        raise InputError(f"model.weights = {path!r} cannot be read as plain tensors: {reason}") from None
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"model.weights = {path!r} holds no state dict, which has one tensor per name.")
    return {str(name): tensor for name, tensor in content.items()}


def _rename_head(weights: dict[str, Tensor], expected: set[str], head: str) -> dict[str, Tensor]:
    # with dropout the head has one more level in its name
    ours = {name for name in expected if name.rpartition(".")[0] == head}
    if not ours or ours & weights.keys():
        return weights
    unexpected = weights.keys() - expected
    theirs = {name.rpartition(".")[0] for name in unexpected}
    if len(theirs) != 1:
        return weights
    (old,) = theirs
    return {name.replace(old, head, 1) if name in unexpected else name: tensor for name, tensor in weights.items()}
