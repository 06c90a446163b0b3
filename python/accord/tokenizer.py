"""Converts text to token ids and back, and conversations to text, with a model's files but not its libraries."""

from accord._core import ChatFormat, Encoding, StreamingDecoder, Tokenizer

__all__ = ["ChatFormat", "Encoding", "StreamingDecoder", "Tokenizer"]
