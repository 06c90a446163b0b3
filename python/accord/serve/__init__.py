"""The server of `accord serve`: OpenAI's HTTP interface over models that ranks share.

    server.py    the process that serves HTTP; it is not a rank
    models.py    its models by the names in requests
    service.py   the service of one model: limits, texts, and the requests that it answers
    ranks.py     the ranks of one model, which are started again when they die or stand still
    job.py       one start of these ranks with `accord run`
    worker.py    the program of each rank

The server tokenizes prompts, decodes answers, and keeps the prompt, the options and the tokens of each running request.
When ranks die, it starts them again and lets each request continue after the tokens that it has.
"""
