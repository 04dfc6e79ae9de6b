"""The OpenAI-compatible server: the frontend's API over the simulated ring, the native one, or fixed times."""
