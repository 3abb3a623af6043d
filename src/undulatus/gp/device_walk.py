"""Walks of several members at once on a device of torch.

Steps, minibatches and decisions are those of :mod:`undulatus.gp.walk`. Here the members, who learn
from the same rows but hold back different ones, take each step together: arrays have one more axis
in front. The steps of an iteration wait for nothing on the device: they are recorded once (on a
card) and played. After an iteration the losses of all members are read, and each decides how it
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from undulatus.errors import NumericalError
from undulatus.gp.arrays import (
    Array,
    Recording,
    load_torch,
    namespace,
    new_streams,
    phases_in_double,
    weighted_gram,
)
from undulatus.gp.damping import spreads
from undulatus.gp.fourier import SINGLE_PHASE_LIMIT
from undulatus.gp.held_back import held_back_loss
from undulatus.gp.posterior import JITTER_LADDER, WeightMoments, solve_moments_on_device
from undulatus.gp.walk import (
    LEARNING_VARIANCE_LIMIT,
    STEPS_PER_FACTORISATION,
    STEPS_PER_ITERATION,
    VARIANCE_DAMPING,
    AdamState,
    Position,
    Walk,
    WalkSetup,
    anneal_or_end,
    follow,
    minibatch_sums,
    minibatch_weight,
    moved_frequencies,
    rescale,
    sampled_rows,
)

FAR_SHARE = 0.25
"""Phases are computed in double precision if one reaches this share of where single precision
ends: frequencies move before it is looked at again."""


def walk_together(
    setups: Sequence[WalkSetup],
    states: Sequence[Walk],
    reports: Sequence[Callable[[Walk], None]],
    *,
    max_iter: int,
    interruptible: bool = False,
) -> list[Walk]:
    """Return the ends of the walks of several members, who go on from ``states``.

    Each member's report is called after each of its iterations. If ``interruptible``, a
    KeyboardInterrupt ends all walks at their last finished iteration.
    """
    states = list(states)

    def walking() -> list[int]:
        return [i for i, s in enumerate(states) if s.outcome == "max_iter" and s.n_iter < max_iter]

    try:
        while going := walking():
            # Those behind go first: a walk that was resumed may be ahead.
            behind = min(states[i].n_iter for i in going)
            members = [i for i in going if states[i].n_iter == behind]
            convoy = Convoy([setups[i] for i in members], [states[i] for i in members])
            together, ahead = set(members), set(going) - set(members)
            # One that has ended walks along unseen, until half of them have.
            while 2 * len(together) > len(members):
                for i, state in zip(members, convoy.iterate(), strict=True):
                    if i in together:
                        states[i] = state
                        reports[i](state)
                together &= set(walking())
                if any(states[i].n_iter == states[j].n_iter for i in together for j in ahead):
                    break
    except KeyboardInterrupt:
        if not (interruptible and all(state.n_iter for state in states)):
            raise
        for i in walking():
            states[i] = replace(states[i], outcome="interrupted")
    return states


class Convoy:
    """M members who have taken equally many steps, and walk on together.

    Each has C latent functions over D frequencies in d features. Their positions are tensors that
    stay where they are, since recorded steps change them there.
    """

    def __init__(self, setups: Sequence[WalkSetup], states: Sequence[Walk]) -> None:
        self._setups, self._states = list(setups), list(states)
        first = setups[0]
        self._pixels, self._learns = first.pixels, first.learn_frequencies
        # Members may have fewer rows to learn from than a minibatch is to have.
        self._batch_rows = min(setup.batch_size for setup in setups)
        move = self._pixels.place.move
        positions = [state.position for state in states]

        def stacked(parts: Sequence[Any]) -> Any:
            return load_torch().stack([move(part) for part in parts]).contiguous()

        self._frequencies = stacked([own.frequencies for own in positions])
        self._variances = stacked([own.signal_variances for own in positions])
        self._gram = stacked([own.gram for own in positions])
        self._projected = stacked([own.projected for own in positions])
        self._adam = [
            stacked([getattr(state.frequency_adam, name) for state in states])
            for name in ("mean", "square")
        ]
        self._scale_adam = [
            stacked([getattr(state.scale_adam, name) for state in states])[:, None].contiguous()
            for name in ("mean", "square")
        ]
        self._lengthscales = move(np.array([own.lengthscale for own in positions]))
        self._units = move(np.array([state.frequency_unit for state in states]))[:, None, None]
        m, c, k = self._projected.shape
        single = self._pixels.place.array
        self._mean, self._covariance = single(np.zeros((m, c, k))), single(np.zeros((m, c, k, k)))
        self._ratio = move(np.ones((m, c)))
        self._order = move(np.zeros((STEPS_PER_ITERATION, m, self._batch_rows), dtype=np.int64))
        # Of each step: its number, the weight of its minibatch, the share of the full step size.
        self._numbers = move(np.ones((STEPS_PER_ITERATION, 3, m)))
        self._next = move(np.zeros(1, dtype=np.int64))
        self._jitter = move(np.zeros(1))
        self._streams = new_streams(self._gram, m * c)
        self._far = self._reaches_far()
        self._step = Recording(self._take_step, self._state)
        self._follow = Recording(self._follow_variances, self._state)
        self._solve = Recording(self._find_moments, self._state)
        self._solve()

    @property
    def _state(self) -> list[Any]:
        """All tensors that steps change."""
        return [
            *(self._frequencies, self._variances, self._gram, self._projected),
            *(*self._adam, *self._scale_adam, self._lengthscales),
            *(self._mean, self._covariance, self._ratio, self._next),
        ]

    def _reaches_far(self) -> bool:
        """Whether phases need double precision, or might before long."""
        x = self._pixels.rows
        longest = float((x * x).sum(-1).max()) ** 0.5
        fastest = float((self._frequencies**2).sum(-1).max()) ** 0.5
        return longest * fastest > FAR_SHARE * SINGLE_PHASE_LIMIT

    # An iteration

    def iterate(self) -> list[Walk]:
        """Return the states of all members after one more outer iteration."""
        before = [tensor.clone() for tensor in self._state]
        losses = self._attempt()
        for jitter in JITTER_LADDER[1:]:
            if np.isfinite(losses).all():
                break
            for tensor, old in zip(self._state, before, strict=True):
                tensor.copy_(old)
            self._jitter.fill_(jitter)
            self._solve()
            losses = self._attempt()
        if not np.isfinite(losses).all():
            raise NumericalError(self._gram.shape[-1])
        self._states = [
            anneal_or_end(setup, self._state_of(member).record_loss(losses[member]))
            for member, setup in enumerate(self._setups)
        ]
        return self._states

    def _attempt(self) -> list[float]:
        """Take the steps of an iteration; return the losses of held-back rows."""
        self._plan_steps()
        step = self._states[0].step
        for number in range(step + 1, step + STEPS_PER_ITERATION + 1):
            self._step()
            if number % STEPS_PER_FACTORISATION == 0:
                self._follow()
                self._solve()
        self._solve()
        return self._losses()

    def _plan_steps(self) -> None:
        """Say which rows the coming minibatches have, and what else differs from step to step."""
        steps = range(self._states[0].step, self._states[0].step + STEPS_PER_ITERATION)
        with ThreadPoolExecutor(len(self._setups)) as pool:
            chosen = list(
                pool.map(
                    lambda setup: [setup.minibatch(step)[: self._batch_rows] for step in steps],
                    self._setups,
                )
            )
        numbers = [
            [
                [step + 1.0] * len(self._setups),
                [minibatch_weight(step + 1)] * len(self._setups),
                [
                    setup.step_share(step + 1, state.anneal_from)
                    for setup, state in zip(self._setups, self._states, strict=True)
                ],
            ]
            for step in steps
        ]
        place = self._pixels.place
        self._order.copy_(place.move(np.array(chosen).swapaxes(0, 1)))
        self._numbers.copy_(place.move(np.array(numbers)))
        self._next.zero_()

    def _losses(self) -> list[float]:
        variances = self._variances.tolist()
        losses = []
        for member, setup in enumerate(self._setups):
            frequencies = self._frequencies[member]
            moments = [
                WeightMoments(mean, covariance)
                for mean, covariance in zip(
                    self._mean[member], self._covariance[member], strict=True
                )
            ]
            with phases_in_double(self._far), self._pixels.place.products():
                losses.append(
                    held_back_loss(
                        setup.held_back,
                        frequencies,
                        variances[member],
                        moments,
                        setup.spreads(frequencies),
                    )
                )
        return losses

    def _state_of(self, member: int) -> Walk:
        """Return a member's state after the steps, its position copied."""
        state = self._states[member]

        def copied(tensors: Sequence[Any]) -> list[Any]:
            return [tensor[member].clone() for tensor in tensors]

        frequencies, variances, gram, projected, *adam = copied(
            [self._frequencies, self._variances, self._gram, self._projected, *self._adam]
        )
        lengthscale = state.position.lengthscale
        if not self._learns:
            lengthscale = float(self._lengthscales[member])
        return replace(
            state,
            step=state.step + STEPS_PER_ITERATION,
            position=Position(frequencies, lengthscale, variances, gram, projected),
            frequency_adam=AdamState(*adam),
            scale_adam=AdamState(*[own[0] for own in copied(self._scale_adam)]),
        )

    # What is recorded

    def _take_step(self) -> None:
        """Take one minibatch: update the running statistics, move the frequencies."""
        chosen = self._order.index_select(0, self._next)[0]
        number, rho, share = self._numbers.index_select(0, self._next)[0][..., None, None]
        c, setup = self._variances.shape[1], self._setups[0]
        block = self._pixels.pick_there(chosen)
        with phases_in_double(self._far), self._pixels.place.products():
            grams, projected, gradient = minibatch_sums(
                block,
                self._frequencies,
                [self._variances[:, latent, None, None] for latent in range(c)],
                [(self._mean[:, latent], self._covariance[:, latent]) for latent in range(c)],
                spreads(self._frequencies, setup.spread) if setup.spread else None,
                sampled_rows(self._batch_rows, self._batch_rows),
                lambda latent, z, precision: weighted_gram(z, precision),
            )
        row_weight = setup.n_total / self._batch_rows
        for latent in range(c):
            follow(self._gram[:, latent], grams[latent], rho, row_weight)
            follow(self._projected[:, latent], projected[latent], rho[..., 0], row_weight)
        frequencies, growth, adam, scale_adam = moved_frequencies(
            self._frequencies,
            gradient,
            AdamState(*self._adam),
            AdamState(*self._scale_adam),
            number,
            share,
            self._units if self._learns else None,
        )
        self._frequencies.copy_(frequencies)
        self._lengthscales /= growth[:, 0, 0]
        for own, moved in ((self._adam, adam), (self._scale_adam, scale_adam)):
            own[0].copy_(moved.mean)
            own[1].copy_(moved.square)
        self._next += 1

    def _follow_variances(self) -> None:
        """Move each γ towards its fixed point, damped, and rescale the statistics."""
        xp = namespace(self._ratio)
        ratio = xp.minimum(
            self._ratio**VARIANCE_DAMPING, LEARNING_VARIANCE_LIMIT / self._variances
        )
        rescale(self._gram, self._projected, ratio[..., None, None])
        self._variances *= ratio

    def _find_moments(self) -> None:
        """Find the moments of the weights under the running statistics."""
        m, c, k = self._projected.shape
        precision = self._gram.reshape(m * c, k, k).clone()
        precision.diagonal(0, -2, -1).add_(1.0)
        projected: Array = self._projected.reshape(m * c, k)
        moments = solve_moments_on_device(precision, projected, self._jitter, self._streams)
        self._mean.copy_(moments.mean.reshape(m, c, k))
        self._covariance.copy_(moments.covariance.reshape(m, c, k, k))
        self._ratio.copy_(moments.variance_ratio.reshape(m, c))
