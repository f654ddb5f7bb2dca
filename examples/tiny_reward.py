"""A reward in one function: it likes answers with many vowels."""


def reward(prompt: str, answer: str, truth: str) -> float:
    """The share of vowels among the answer's characters."""
    return sum(letter in "aeiou" for letter in answer.lower()) / max(1, len(answer))
