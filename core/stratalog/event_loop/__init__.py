"""What every process needs on its event loop: tasks that are kept, turns that are shared out, the limits of TLS."""
