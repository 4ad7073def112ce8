"""What is done to the residual blocks of a finished model: stochastic depth, checkpointing, freezing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sweep.config.errors import InputError
from sweep.training.models.norms import find_batch_norms, override_attributes
from sweep.training.vision import resnet, vision_transformer

_BLOCKS = (resnet.BasicBlock, resnet.Bottleneck, vision_transformer.EncoderBlock)


def find_residual_blocks(model: nn.Module) -> list[nn.Module]:
    """The residual blocks from the input to the output.

    A custom model may list them as ``blocks``, and each block, as ``branch_ends``, the modules whose output is added to
    the block's input; stochastic depth requires both.
    """
    own = getattr(model, "blocks", None)
    return list(own) if own is not None else [module for module in model.modules() if isinstance(module, _BLOCKS)]


def find_stages(model: nn.Module) -> list[nn.Module]:
    """The three or four stages of a ResNet, the blocks of a ViT; a custom model may list them as ``stages``."""
    own = getattr(model, "stages", None)
    if own is not None:
        return list(own)
    sequences = [child for child in model.children() if isinstance(child, nn.Sequential)]
    return [each for each in sequences if any(isinstance(part, _BLOCKS) for part in each)] or find_residual_blocks(
        model
    )


def add_stochastic_depth(model: nn.Module, probability: float, name: str) -> None:
    """Makes each sample skip the residual branches of block l of L with ``probability`` * l / L while training.

    Huang et al. 2016 (arXiv:1603.09382). A kept branch is divided by its probability: evaluation needs no correction.

    Raises:
        InputError: where the model has no residual block, or the ends of its branches are not known.
    """
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


def checkpoint_blocks(model: nn.Module) -> None:
    """Makes the blocks drop their activations and recompute them in the backward pass."""
    for block in find_residual_blocks(model) or list(model.children()):
        block.forward = partial(_recomputed, block, block.forward)


def freeze_stages(model: nn.Module, count: int, name: str) -> None:
    """Freezes everything up to the end of stage ``count``: no gradients, evaluation mode.

    Raises:
        InputError: where the model has fewer stages.
    """
    stages = find_stages(model)
    if count > len(stages):
        raise InputError(f"model.freeze_stages = {count}, but {name} has {len(stages)} stages; give at most that many.")
    last = {id(parameter) for parameter in stages[count - 1].parameters()}
    parameters = list(model.parameters())
    end = max(place for place, parameter in enumerate(parameters) if id(parameter) in last)
    for parameter in parameters[: end + 1]:
        parameter.requires_grad_(False)
    for module in model.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()


def _branch_ends(block: nn.Module) -> list[nn.Module]:
    # the modules whose output is added to the block's input
    own = getattr(block, "branch_ends", None)
    if own is not None:
        return list(own)
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
