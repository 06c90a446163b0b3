#pragma once
// accord.Tokenizer, accord.StreamingDecoder, accord.ChatFormat.

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "accord/chat_format.hpp"

namespace accord::python {

/// TypeError that says what `what` is instead of text.
std::string text_argument(nanobind::handle text, const std::string& what);
/// [{"role": ..., "content": ...}, ...]; KeyError and TypeError name the message that is none.
std::vector<ChatMessage> messages_argument(nanobind::handle messages);

void bind_tokenizer(nanobind::module_& module);

}  // namespace accord::python
