"""What a person sees and answers at the terminal: lines, help, confirmations, times."""

__all__ = (
    "completion",
    "confirmation",
    "lacking",
    "moments",
    "plain_help",
    "say",
)
