"""accord.export_gguf and the command python -m accord.gguf: engine packages of GGUF files, the format of llama.cpp."""
