// GPU memory and NCCL communicators for C callers.
#include "accord/device_window.hpp"

#include "accord/accord.h"
#include "accord/nccl.hpp"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/times.hpp"

using accord::Device;
using accord::DeviceWindow;
using accord::Status;
using accord::c::answer;

extern "C" accord_status_t accord_device_window_create(accord_communicator_t* communicator, void* memory, size_t bytes,
                                                       accord_device_t device, int32_t device_index, int64_t timeout_ns,
                                                       accord_device_window_t** window) {
  if (window != nullptr) *window = nullptr;
  return answer(
      __func__, {{"communicator", communicator}, {"window", window}}, [&](std::string_view function) -> Status {
        ACCORD_ASSIGN_OR_RETURN(const Device where, accord::c::device_of(device, device_index, function));
        accord::CallOptions options;
        ACCORD_ASSIGN_OR_RETURN(options.timeout, accord::c::timeout_of(timeout_ns, function));
        accord::Communicator& group = communicator->communicator;
        const accord::Buffer own{memory, bytes, accord::DType::kUInt8, where};
        ACCORD_ASSIGN_OR_RETURN(DeviceWindow made, memory == nullptr ? group.device_window(bytes, where, options)
                                                                     : group.device_window(own, options));
        *window = new accord_device_window{std::move(made)};
        return {};
      });
}

extern "C" accord_status_t accord_device_window_memory(accord_device_window_t* window, void** memory, size_t* bytes,
                                                       accord_window_use_t* use) {
  return answer(__func__, {{"window", window}}, [&](std::string_view) -> Status {
    if (memory != nullptr) *memory = window->window.data();
    if (bytes != nullptr) *bytes = window->window.bytes();
    if (use != nullptr) *use = accord::c::number_of(accord::c::kWindowUses, window->window.use());
    return {};
  });
}

extern "C" accord_status_t accord_device_window_is_direct(accord_device_window_t* window, int32_t* is_direct) {
  return answer(__func__, {{"window", window}, {"is_direct", is_direct}}, [&](std::string_view) -> Status {
    *is_direct = window->window.is_direct() ? 1 : 0;
    return {};
  });
}

extern "C" void accord_device_window_free(accord_device_window_t* window) { delete window; }

extern "C" accord_status_t accord_communicator_lend_nccl(accord_communicator_t* communicator, void* nccl_communicator) {
  return answer(__func__, {{"communicator", communicator}, {"nccl_communicator", nccl_communicator}},
                [&](std::string_view) { return accord::lend_nccl(communicator->communicator, nccl_communicator); });
}
