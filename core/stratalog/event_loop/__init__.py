"""What every process needs on its event loop: tasks that are kept, and turns that are shared out, connections with TLS."""
