#pragma once
// accord.TextStream and its related functions.

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <utility>

#include "accord/text_generation.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {

struct TextStreamHandle {
  ProcessBound<TextStream> stream;

  TextStream& use() { return stream.use("this stream"); }
};

/// Returns how an answer ended; "" while it is in progress.
std::string reason_of(const std::optional<FinishReason>& finish);

/// Returns the next event of a stream. Waits in slices, so that Ctrl-C is noticed; raises StopIteration at the
/// stream's end.
template <typename Event, typename Stream>
Event next_of(Stream& stream) {
  while (true) {
    Result<std::optional<Event>> event(Status(StatusCode::kTimeout, ""));
    {
      const WithoutGil without_gil;
      event = stream.next(kInterruptSlice);
    }
    if (!event.ok() && event.status().code() == StatusCode::kTimeout) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      continue;
    }
    std::optional<Event> found = value_or_raise(std::move(event));
    if (!found) throw nb::stop_iteration();
    return std::move(*found);
  }
}

void bind_text_stream(nanobind::module_& module);

}  // namespace accord::python
