"""The server of `accord serve`: OpenAI's HTTP interface over a language model that ranks share.

The process that serves HTTP is not a rank. It starts the ranks with `accord run` and supervises them, tokenizes
prompts, decodes answers, and keeps for each running request its prompt, its options and its tokens. When ranks die or
stand still, it starts them again and lets each request continue after the tokens that it has.
"""
