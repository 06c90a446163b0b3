#include "bindings/arguments/stream.hpp"

#include <cstdint>
#include <string>

namespace accord::python {

Stream stream_argument(nb::handle stream) {
  if (stream.is_none()) return {};
  nb::object handle = nb::borrow(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    handle = stream.attr("__cuda_stream__")()[1];  // the first element is the protocol's version
  } else if (nb::hasattr(stream, "cuda_stream")) {
    handle = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "ptr")) {
    handle = stream.attr("ptr");
  }
  std::uintptr_t address = 0;
  if (nb::isinstance<nb::bool_>(handle) || !nb::try_cast(handle, address)) {
    const std::string message = "stream: expected a cudaStream_t as an integer, or a stream of torch or CuPy, got " +
                                nb::cast<std::string>(nb::repr(stream));
    throw nb::type_error(message.c_str());
  }
  return {reinterpret_cast<void*>(address)};
}

}  // namespace accord::python
