"""The same as llama_tensor_parallel with Qwen 2.5, whose queries, keys and values have biases.

accord run -n 2 examples/compile/qwen_tensor_parallel.py
"""

import small_models
from llama_tensor_parallel import run

run(small_models.qwen)
