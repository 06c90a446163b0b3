#pragma once
// accord.Tokenizer, accord.StreamingDecoder, accord.ChatFormat.

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "accord/chat_format.hpp"

namespace accord::python {

/// Reads a text; raises a TypeError that names `what` and describes what it is instead of a text.
std::string text_argument(nanobind::handle text, const std::string& what);
/// Reads [{"role": ..., "content": ...}, ...]. KeyError and TypeError name the invalid message.
std::vector<ChatMessage> messages_argument(nanobind::handle messages);

void bind_tokenizer(nanobind::module_& module);

}  // namespace accord::python
