"""One module for each section of the UI: from a request to the data of its page."""
