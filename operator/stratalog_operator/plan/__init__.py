"""What the operator does next: what is observed goes in, actions and statuses come out.

Pure. Source: docs/operator.md sections 4 to 7.
"""
