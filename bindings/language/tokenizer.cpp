// Encoding and decoding release the GIL. Text is passed as str; a str that is not valid text (lone surrogates) raises
// TypeError.
#include "bindings/language/tokenizer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "accord/chat_format.hpp"
#include "accord/tokenizer.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

EncodeOptions encode_options(bool add_special_tokens, bool whole) {
  return {add_special_tokens ? SpecialTokens::kAdd : SpecialTokens::kLeaveOut,
          whole ? TextLength::kWhole : TextLength::kAsPrescribed};
}

ShowSpecial show(bool skip_special_tokens) { return skip_special_tokens ? ShowSpecial::kSkip : ShowSpecial::kShow; }

// Runs `call` without the GIL, and returns its value or raises its error with the GIL.
template <typename Call>
auto without_gil(Call call) {
  auto result = [&] {
    const WithoutGil released;
    return call();
  }();
  return value_or_raise(std::move(result));
}

Tokenizer load_tokenizer(nb::handle path) {
  return value_or_raise(run_interruptibly([file = path_argument(path)] { return Tokenizer::load(file); }));
}

std::vector<TokenId> encode(const Tokenizer& self, const std::string& text, bool add_special_tokens, bool whole) {
  return without_gil([&] { return self.encode(text, encode_options(add_special_tokens, whole)); });
}

Encoding encode_with_mask(const Tokenizer& self, const std::string& text, const std::optional<std::string>& pair,
                          bool add_special_tokens, bool whole) {
  const EncodeOptions options = encode_options(add_special_tokens, whole);
  return without_gil(
      [&] { return pair ? self.encode_pair(text, *pair, options) : self.encode_with_mask(text, options); });
}

std::string decode(const Tokenizer& self, const std::vector<TokenId>& ids, bool skip_special_tokens) {
  return without_gil([&] { return self.decode(ids, show(skip_special_tokens)); });
}

std::string render(const ChatFormat& self, nb::handle messages, bool add_generation_prompt) {
  return value_or_raise(self.render(messages_argument(messages),
                                    add_generation_prompt ? AddGenerationPrompt::kYes : AddGenerationPrompt::kNo));
}

std::optional<nb::bytes> bytes_of(const Tokenizer& self, TokenId id) {
  const auto bytes = value_or_raise(self.bytes_of(id));
  return bytes ? std::optional(nb::bytes(bytes->data(), bytes->size())) : std::nullopt;
}

void bind_decoding(nb::module_& module) {
  nb::class_<Encoding>(module, "Encoding", "Input of an encoder model: three lists of the same length.")
      .def_ro("ids", &Encoding::ids, "The tokens.")
      .def_ro("type_ids", &Encoding::type_ids, "0 for the first text and its frame, 1 for those of the second.")
      .def_ro("attention_mask", &Encoding::attention_mask, "0 for padding tokens.");
  nb::class_<StreamingDecoder>(module, "StreamingDecoder",
                               "Decodes tokens as they arrive, and returns text as soon as its characters are "
                               "complete.")
      .def(
          "push", [](StreamingDecoder& self, TokenId id) { return value_or_raise(self.push(id)); }, nb::arg("id"),
          "Returns the text that the token completes; often empty.")
      .def(
          "finish", [](StreamingDecoder& self) { return value_or_raise(self.finish()); },
          "Returns the remaining text, with U+FFFD for incomplete characters. The next push() begins a new text.");
}

void bind_chat_format(nb::module_& module) {
  nb::class_<ChatFormat>(module, "ChatFormat", "The text that a chat model is given for a conversation.")
      .def_static(
          "load", [](nb::handle path) { return value_or_raise(ChatFormat::load(path_argument(path))); },
          nb::arg("path"), nb::sig("def load(path: str | os.PathLike[str]) -> ChatFormat"),
          R"(Reads a chat_format.json, which accord.chat_format.derive creates from a model's template.

Raises NotFound, Corrupt, or Unsupported with the reason if the template does not have this form.)")
      .def_static(
          "parse",
          [](const std::string& json, const std::string& name) {
            return value_or_raise(ChatFormat::parse(json, name));
          },
          nb::arg("json"), nb::arg("name") = "chat_format.json",
          "Same as load(), from the file's text; `name` stands for the file in errors.")
      .def("render", &render, nb::arg("messages"), nb::kw_only(), nb::arg("add_generation_prompt") = true,
           nb::sig("def render(self, messages: collections.abc.Iterable[collections.abc.Mapping[str, str]], *, "
                   "add_generation_prompt: bool = True) -> str"),
           R"(Returns the text of a conversation of {"role": ..., "content": ...}, special tokens included.

Encode it with add_special_tokens=False. Raises InvalidArgument if the format does not have such a role or such an
order of roles.)");
}

}  // namespace

std::string text_argument(nb::handle text, const std::string& what) {
  std::string value;
  if (nb::try_cast(text, value)) return value;
  PyErr_Clear();  // set for a str with lone surrogates
  const bool is_text = nb::isinstance<nb::str>(text);
  throw nb::type_error((what + ": expected a str, got " +
                        (is_text ? "one with lone surrogates" : "a " + std::string(nb::type_name(text.type()).c_str())))
                           .c_str());
}

std::vector<ChatMessage> messages_argument(nb::handle messages) {
  std::vector<ChatMessage> list;
  if (PySequence_Check(messages.ptr()) != 1) {
    throw nb::type_error(
        (std::string("expected a list of messages, got a ") + nb::type_name(messages.type()).c_str()).c_str());
  }
  for (const nb::handle message : messages) {
    const auto text_of = [&](const char* key) {
      const std::string what = "message " + std::to_string(list.size()) + ": " + key;
      if (PyMapping_HasKeyString(message.ptr(), key) != 1) {
        throw nb::key_error((what + R"(: a message is {"role": ..., "content": ...}, both are texts)").c_str());
      }
      return text_argument(message[key], what);
    };
    std::string role = text_of("role");
    list.push_back({std::move(role), text_of("content")});
  }
  return list;
}

void bind_tokenizer(nb::module_& module) {
  bind_decoding(module);
  nb::class_<Tokenizer>(module, "Tokenizer",
                        R"(A tokenizer of Hugging Face's `tokenizers`, read by accord itself from its tokenizer.json.

It gives the same ids and the same text; docs/tokenizer.md lists what is supported. Immutable. Calls release the
GIL.)")
      .def_static("load", &load_tokenizer, nb::arg("path"),
                  nb::sig("def load(path: str | os.PathLike[str]) -> Tokenizer"),
                  "Reads a tokenizer.json. Raises NotFound, Corrupt or Unsupported, which name the file and the key.")
      .def_static(
          "parse",
          [](const std::string& json, const std::string& name) { return value_or_raise(Tokenizer::parse(json, name)); },
          nb::arg("json"), nb::arg("name") = "tokenizer.json",
          "Same as load(), from the file's text; `name` stands for the file in errors.")
      .def("encode", &encode, nb::arg("text"), nb::kw_only(), nb::arg("add_special_tokens") = true,
           nb::arg("whole") = false,
           R"(Returns the ids of `text`.

add_special_tokens: adds the tokens that frame a text for the model (beginning of text, separators).
whole: ignores the length that the file prescribes (truncation and padding).

Raises InvalidArgument for a character that is not in the vocabulary if there is no token for unknown ones.)")
      .def("encode_with_mask", &encode_with_mask, nb::arg("text"), nb::arg("pair") = nb::none(), nb::kw_only(),
           nb::arg("add_special_tokens") = true, nb::arg("whole") = false,
           "Returns the complete input of an encoder model, for a text or a pair of texts. Arguments are those of "
           "encode().")
      .def("decode", &decode, nb::arg("ids"), nb::kw_only(), nb::arg("skip_special_tokens") = true,
           "Returns the text of `ids`. Ids that are not tokens are skipped; bytes that are not UTF-8 become U+FFFD.")
      .def(
          "bytes_of", &bytes_of, nb::arg("id"),
          "Returns the bytes that a token adds to a text in which other tokens precede and follow it: not always whole "
          "characters. None for special tokens and for ids that are not tokens.")
      .def(
          "streaming_decoder",
          [](const Tokenizer& self, bool skip_special_tokens) {
            return self.streaming_decoder(show(skip_special_tokens));
          },
          nb::kw_only(), nb::arg("skip_special_tokens") = true,
          "Creates a decoder for tokens that arrive one at a time.")
      .def_prop_ro("vocabulary_size", &Tokenizer::vocabulary_size, "The number of tokens, including added ones.")
      .def(
          "id_of", [](const Tokenizer& self, const std::string& token) { return self.id_of(token); }, nb::arg("token"),
          "Returns the id of a token as written in the file; None if there is none.")
      .def(
          "token_of", [](const Tokenizer& self, TokenId id) { return self.token_of(id); }, nb::arg("id"),
          "Returns the token of an id; None if there is none.");
  bind_chat_format(module);
}

}  // namespace accord::python
