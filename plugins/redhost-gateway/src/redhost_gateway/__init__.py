"""Choose the expert of a request, and let servers with OpenAI's API answer it."""
