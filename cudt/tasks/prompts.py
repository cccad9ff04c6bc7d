"""Prompts for instructions: Alpaca's template, shortened to a maximum length without cutting the
template.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: The template of Alpaca (Taori et al., 2023).
_PLAIN = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
#: A response keeps at least `max_length` divided by this, even if its prompt is too long.
_LEAST_RESPONSE = 4


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt."""

    tokens: list[int]
    is_cut: bool


@dataclass(frozen=True)
class Dialogue:
    """The tokens of a prompt and of the response to it."""

    prompt: Prompt
    response: list[int]
    response_is_cut: bool


def prompt_text(instruction: str, given: str) -> str:
    """The template with an instruction and, if there is one, its input."""
    template = _WITH_INPUT if given.strip() else _PLAIN
    return template.format(instruction=instruction, input=given)


def fitted_prompt(tokenizer: Any, instruction: str, given: str, most: int) -> Prompt | None:
    """The prompt in at most `most` tokens; None if the template alone is longer.

    The template is never cut, because its end asks the model to respond. The input is cut at its
    end; if that is not enough, so is the instruction.
    """

    def tokens(*texts: str) -> list[int]:
        found = tokenizer(prompt_text(*texts))["input_ids"]
        # Some tokenizers end every text with an end token, but here the response follows.
        return found[:-1] if found and found[-1] == tokenizer.eos_token_id else found

    whole = tokens(instruction, given)
    if len(whole) <= most:
        return Prompt(whole, is_cut=False)
    kept = _longest(given, lambda start: len(tokens(instruction, start)), most)
    if kept is not None:
        return Prompt(tokens(instruction, kept), is_cut=True)
    kept = _longest(instruction, lambda start: len(tokens(start, "")), most)
    return None if kept is None else Prompt(tokens(kept, ""), is_cut=True)


def _longest(text: str, length: Callable[[str], int], most: int) -> str | None:
    """The longest prefix of a text with at most `most` tokens; None if even the empty one has
    more.
    """
    fits = bisect.bisect_right(range(len(text) + 1), most, key=lambda end: length(text[:end]))
    return text[: fits - 1] if fits else None


def fitted_dialogue(tokenizer: Any, texts: Sequence[str], max_length: int) -> Dialogue | None:
    """Prompt and response in at most `max_length` tokens; None if there is no response, or no room
    for it.

    The response ends with the tokenizer's end token, unless it is cut. If both are too long
    together, the response is cut at its end, but keeps at least a quarter of the length (or all it
    has); the prompt is cut to make room for it.
    """
    instruction, given, output = texts
    response = tokenizer(output, add_special_tokens=False)["input_ids"]
    if not output.strip() or not response:
        return None
    if tokenizer.eos_token_id is not None:
        response = [*response, tokenizer.eos_token_id]
    least = min(len(response), max_length // _LEAST_RESPONSE)
    prompt = fitted_prompt(tokenizer, instruction, given, max_length - least)
    room = 0 if prompt is None else max_length - len(prompt.tokens)
    if prompt is None or room < 1:
        return None
    return Dialogue(prompt, response[:room], response_is_cut=len(response) > room)
