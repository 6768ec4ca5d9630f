"""What a person sees and answers at the terminal: lines, help, confirmations, times."""

__all__ = (
    "completion",
    "confirmation",
    "missing_module",
    "moments",
    "option_groups",
    "plain_help",
    "say",
)
