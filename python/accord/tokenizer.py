"""Text to token ids and back, and the text of conversations: read from a model's files, without its libraries."""

from accord._core import ChatFormat, Encoding, StreamingDecoder, Tokenizer

__all__ = ["ChatFormat", "Encoding", "StreamingDecoder", "Tokenizer"]
