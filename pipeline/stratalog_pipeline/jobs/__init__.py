"""What is done with cold data: archive, verify, export, cost. Each job is a function, and a command."""
