// A wait releases the GIL and is cut into slices, so that Ctrl-C is noticed.
#include "bindings/language/generation_queue.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "base/clock.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/language/requests.hpp"

namespace accord::python {
namespace {

std::vector<GenerationEvent> next_events(QueueHandle& self, double timeout) {
  if (!(timeout >= 0)) raise_invalid("timeout: expected a number of seconds, 0 or more");
  constexpr double kMaxSeconds = 86400;
  GenerationQueue& queue = self.use();
  const Deadline deadline =
      Deadline::in(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(timeout, kMaxSeconds))));
  for (;;) {
    std::vector<GenerationEvent> events;
    {
      const WithoutGil without_gil;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      events = queue.next(std::min(left, kInterruptSlice));
    }
    if (!events.empty() || deadline.passed()) return events;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void bind_generation_queue(nb::module_& module) {
  nb::class_<QueueHandle>(module, "GenerationQueue",
                          R"(The events of many requests, for a program that serves them with one thread.

Created by LanguageModel.queue(). Thread-safe. Keeps its model alive; its destruction cancels the requests that have
not ended.)")
      .def(
          "submit",
          [](QueueHandle& self, nb::handle prompt, const nb::kwargs& options) {
            return value_or_raise(self.use().submit(request_of(prompt_of(prompt), options)));
          },
          nb::arg("prompt"), nb::arg("options"),
          nb::sig("def submit(self, prompt: collections.abc.Sequence[int], **options: typing.Any) -> int"),
          "Continues a prompt and returns the number of the request. Options and errors are those of "
          "LanguageModel.submit().")
      .def(
          "cancel", [](QueueHandle& self, RequestId id) { self.use().cancel(id); }, nb::arg("request"),
          "Ends a request soon; its last events follow. Does nothing if it has ended.")
      .def("next", &next_events, nb::arg("timeout"), nb::sig("def next(self, timeout: float) -> list[GenerationEvent]"),
           "Returns the events that have arrived, oldest first: usually those of a whole step. Waits for the first of "
           "them; returns an empty list after `timeout` seconds.");
}

}  // namespace accord::python
