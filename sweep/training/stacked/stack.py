"""The process that trains several trials of one shape together: each in its own loop, their steps taken at once."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from sweep.records.messages import Ending, MemberMessage, Message, StackTask, TrialTask, encode_message
from sweep.records.quality_flags import STACKED
from sweep.training.loop.pending_step import PendingStep, TrialSteps, find_next
from sweep.training.loop.trial import train_trial
from sweep.training.outcomes import classify_error, explain_error, find_cause
from sweep.training.stacked.stacked_step import StackedStep
from sweep.training.steps.setup import count_eval_images


def run_stack(task: StackTask) -> Iterator[Message]:
    """Trains the members of ``task``; yields the messages of each as :class:`MemberMessage`, and last one ending, which
    is that of the process: ``complete`` where each member has had an ending of its own or was stopped.

    A member that diverges, crashes or is stopped leaves the others as they are. What fails in a step of several members
    ends the process, because it cannot be attributed to one of them.
    """
    if task.threads:
        torch.set_num_threads(task.threads)  # here, because each trial restores at its end what it has found
    with contextlib.ExitStack() as stack:
        members = [_Member(_place(member, task)) for member in task.members]
        for member in members:
            stack.enter_context(contextlib.closing(member.steps))
        ending = Ending(outcome="complete")
        try:
            yield from _train_together(members, Path(task.stop_folder))
        except Exception as error:
            cause = find_cause(error)
            ending = Ending(outcome=classify_error(error), error=explain_error(error), cause=cause)
    yield ending


@final
class _Member:
    """One of the trials, in the state between two of its steps."""

    def __init__(self, task: TrialTask) -> None:
        self.number = task.number
        self.steps: TrialSteps = train_trial(task)
        self.pending: PendingStep | None = None
        self.loss: Tensor | None = None  # of the pending step, once it is taken

    def advance(self, num_members: int) -> Iterator[Message]:
        """Everything up to the next step; without a pending step afterwards, the trial has ended."""
        is_first, loss = self.pending is None, self.loss
        self.pending = self.loss = None
        item = find_next(lambda: next(self.steps) if loss is None else self.steps.send(loss))
        while item is not None and not isinstance(item, PendingStep):
            yield item
            item = find_next(lambda: next(self.steps))
        self.pending = item
        if item is not None and is_first:
            _prepare(item, num_members)


def _place(member: TrialTask, task: StackTask) -> TrialTask:
    return replace(member, device=task.device, threads=task.threads, measures_cost=False)


def _prepare(step: PendingStep, num_members: int) -> None:
    setup, state = step.setup, step.state
    state.flags = tuple(dict.fromkeys((*state.flags, STACKED)))
    # a step holds the activations of all members, so that an evaluation of as many images requires no more memory
    most = count_eval_images(setup.splits, setup.step.world)
    setup.eval_batch.size = min(num_members * setup.planner.micro, most)


def _train_together(members: list[_Member], stop_folder: Path) -> Iterator[MemberMessage]:
    active, stacks = list(members), _Stacks()
    while active:
        for member in list(active):
            if (stop_folder / str(member.number)).exists():
                member.steps.close()
                member.pending = None
            else:
                for message in member.advance(len(members)):
                    yield MemberMessage(member.number, encode_message(message).decode())
            if member.pending is None:
                active.remove(member)
        for group in _group_by_sizes(active):
            stacks.take(group)


def _group_by_sizes(members: Sequence[_Member]) -> list[list[_Member]]:
    # trials that resumed at different steps reach the smaller last batch of an epoch at different times
    groups: dict[tuple[int, ...], list[_Member]] = {}
    for member in members:
        assert member.pending is not None, "every active trial has a step that is due"
        sizes = tuple(part.stop - part.start for part in member.pending.window.slices)
        groups.setdefault(sizes, []).append(member)
    return list(groups.values())


@final
@dataclass
class _Stacks:
    """The stacked steps by the numbers of their members; groups change seldom, so that few are made."""

    def __post_init__(self) -> None:
        self._made: dict[tuple[int, ...], StackedStep] = {}

    def take(self, members: Sequence[_Member]) -> None:
        """Takes the pending step of each member."""
        pending = [member.pending for member in members if member.pending is not None]
        if len(pending) == 1:
            members[0].loss = pending[0].take()
            return
        numbers = tuple(member.number for member in members)
        if numbers not in self._made:
            self._made[numbers] = StackedStep([each.setup.step for each in pending])
        for member, loss in zip(members, self._made[numbers].take(pending), strict=True):
            member.loss = loss
