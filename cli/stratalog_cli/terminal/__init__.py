"""What a person sees and answers at the terminal: lines, help, confirmations, times."""

__all__ = (
    "completion",
    "confirmation",
    "missing_module",
    "moments",
    "plain_help",
    "say",
)
