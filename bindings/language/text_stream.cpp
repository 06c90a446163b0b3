#include "bindings/language/text_stream.hpp"

#include <nanobind/stl/string.h>

namespace accord::python {
namespace {

void bind_text_event(nb::module_& module) {
  nb::class_<TextEvent>(module, "TextEvent", "More text of a sample, or its end, or both.")
      .def_ro("sample", &TextEvent::sample, "Index of the sample among those of the request.")
      .def_ro("text", &TextEvent::text, "Whole characters, without special tokens and what stopped the sample.")
      .def_prop_ro(
          "finish", [](const TextEvent& self) { return reason_of(self.finish); },
          R"("" until the sample ends; then "stop_token", "stop_sequence", "length", "cancelled" or "error".)")
      .def_prop_ro(
          "error", [](const TextEvent& self) { return exception_for(self.status); },
          "The reason, after an error or if everything has ended; else None.");
}

}  // namespace

std::string reason_of(const std::optional<FinishReason>& finish) {
  return finish ? std::string(to_string(*finish)) : std::string();
}

void bind_text_stream(nb::module_& module) {
  bind_text_event(module);
  nb::class_<TextStreamHandle>(module, "TextStream",
                               "The text of one request, as it arrives. Its destruction cancels the request if it has "
                               "not ended.")
      .def_prop_ro("id", [](TextStreamHandle& self) { return self.use().id(); })
      .def_prop_ro(
          "prompt_tokens", [](TextStreamHandle& self) { return self.use().usage().prompt_tokens; },
          "The number of tokens in the prompt.")
      .def_prop_ro(
          "completion_tokens", [](TextStreamHandle& self) { return self.use().usage().completion_tokens; },
          "The number of tokens generated so far, in all samples.")
      .def(
          "cancel", [](TextStreamHandle& self) { self.use().cancel(); }, "Ends the request soon.")
      .def("__iter__", [](nb::object self) { return self; })
      .def(
          "__next__", [](TextStreamHandle& self) { return next_of<TextEvent>(self.use()); },
          nb::sig("def __next__(self) -> TextEvent"));
}

}  // namespace accord::python
