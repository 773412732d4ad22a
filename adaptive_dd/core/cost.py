"""What a switch costs: prompt tokens to be processed again, priced by a learned speed, against what a switch gains.

Where an arm is a server (a preset's child, a replica), a conversation's prompt cache lives in one of them, and playing
another arm throws it away. A switch is paid once, and its gain comes back with every further answer of the
conversation, of which there will be about as many as there were (the same expectation as Lindy's law; with no
history, one).

Where it misleads: what a server still holds is guessed from what it answered before, so a cache that was evicted
meanwhile makes us stick for nothing (once: `prompt_n` tells); a conversation that ends right after a switch has
paid for nothing. With `Context.reprocess` empty every function here changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adaptive_dd.core.domain import Context, Setting

# Below this a prompt's time is mostly what any request costs, and says little about the price of a token.
FEWEST_TOKENS = 64
# Prompt tokens after which an observation counts half: some ten long prompts, so that heat or a new tenant show.
HALF_LIFE_TOKENS = 50_000.0
# Trials are for moments when they are free: an arm may be tried where its extra prompt time is below this.
FREE_TRIAL_MS = 50.0
# An answer's length where the client sets no limit and nothing was learned.
ANSWER_TOKENS = 200.0


@dataclass(frozen=True, slots=True)
class PromptSpeed:
    """Discounted sums of prompt tokens processed and of the time that took."""

    tokens: float = 0.0
    ms: float = 0.0

    @property
    def ms_per_token(self) -> float:
        """Price of one prompt token, 0.0 where nothing is known."""
        return self.ms / self.tokens if self.tokens > 0.0 else 0.0

    def learned(self, prompt_n: int, prompt_ms: float) -> PromptSpeed:
        """The speed after one more prompt of `prompt_n` processed tokens."""
        if prompt_n < FEWEST_TOKENS or prompt_ms <= 0.0:
            return self
        kept = 0.5 ** (prompt_n / HALF_LIFE_TOKENS)
        return PromptSpeed(kept * self.tokens + prompt_n, kept * self.ms + prompt_ms)


def switch_ms(context: Context, arm: Setting) -> float:
    """Time to process again what `arm` does not hold, beyond the best arm's share of it."""
    for other, tokens in context.reprocess:
        if other == arm:
            return tokens * context.prompt_ms_per_token
    return 0.0


def free_to_try(context: Context, arm: Setting) -> bool:
    """Whether trying `arm` costs no prompt time worth speaking of, so that a trial may be made now."""
    return switch_ms(context, arm) <= FREE_TRIAL_MS


def answers_ahead(context: Context) -> float:
    """Answers over which a switch made now pays: this one, and as many more as the conversation has had."""
    return 1.0 + context.turns


def tokens_ahead(context: Context, answer_tokens: float = ANSWER_TOKENS) -> float:
    """Tokens over which a switch made now pays. answer_tokens: length of an answer here, as far as it is known."""
    each = answer_tokens if context.max_tokens is None else min(answer_tokens, float(context.max_tokens))
    return each * answers_ahead(context)


def total_ms(
    context: Context, arm: Setting, ms_per_token: float, answer_tokens: float = ANSWER_TOKENS
) -> float:
    """Decode time ahead under `arm` plus the switch to it: what to compare arms by. In ms."""
    return ms_per_token * tokens_ahead(context, answer_tokens) + switch_ms(context, arm)


def cheapest(
    context: Context, ms_per_token: Mapping[Setting, float], *, answer_tokens: float = ANSWER_TOKENS
) -> Setting:
    """The arm with the least total time; among equals the first. Raises ValueError where there is no arm."""
    return min(ms_per_token, key=lambda arm: total_ms(context, arm, ms_per_token[arm], answer_tokens))


def stays(
    context: Context,
    chosen: Setting,
    permitted: Iterable[Setting],
    ms_per_token: Mapping[Setting, float],
    *,
    answer_tokens: float = ANSWER_TOKENS,
) -> Setting:
    """`chosen`, unless its gain over the permitted arm that is cheapest to reach does not pay for the switch.

    An arm without a prediction in `ms_per_token` is taken to be as fast as the other: it is not worth a switch.
    """
    paid = switch_ms(context, chosen)
    if paid <= 0.0:
        return chosen
    home = min(permitted, key=lambda arm: switch_ms(context, arm), default=chosen)
    saved_ms = paid - switch_ms(context, home)
    if saved_ms <= 0.0:
        return chosen
    gain = ms_per_token.get(home, 0.0) - ms_per_token.get(chosen, 0.0)
    known = home in ms_per_token and chosen in ms_per_token
    return chosen if known and gain * tokens_ahead(context, answer_tokens) > saved_ms else home
