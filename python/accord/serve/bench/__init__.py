"""The load generator of `accord bench serve`, for any HTTP server of a language model with OpenAI's interface."""
