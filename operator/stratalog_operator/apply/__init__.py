"""Does what the plan says: each action is one or two requests, safe to repeat after any of them was lost."""
