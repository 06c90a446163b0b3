#pragma once
// accord.Tokenizer, accord.StreamingDecoder, accord.ChatFormat.

#include <nanobind/nanobind.h>

#include <vector>

#include "accord/chat_format.hpp"

namespace accord::python {

/// [{"role": ..., "content": ...}, ...]
std::vector<ChatMessage> messages_argument(nanobind::handle messages);

void bind_tokenizer(nanobind::module_& module);

}  // namespace accord::python
