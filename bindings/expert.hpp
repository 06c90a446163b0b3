#pragma once
// accord.moe.ExpertGroup and accord.moe.ExpertHandle.

#include <nanobind/nanobind.h>

#include <deque>
#include <optional>
#include <string_view>

#include "accord/expert_parallel.hpp"
#include "array.hpp"
#include "status.hpp"

#define ACCORD_ROWS_SIG "accord._arrays.ArrayLike"

namespace accord::python {

namespace nb = nanobind;

/// What a Python ExpertHandle holds.
struct MapHandle {
  explicit MapHandle(ExpertHandle made) : handle(std::move(made)) {}
  ExpertHandle handle;

  const ExpertHandle& prepared() const {
    if (!handle.prepared()) raise({StatusCode::kWrongState, "this expert handle is not prepared"});
    return handle;
  }
};

/// The arrays of one call.
class Arrays {
 public:
  /// `dtype` of rows, see ArrayView.
  explicit Arrays(nb::handle dtype) : dtype_(dtype_argument(dtype)) {}

  ConstBuffer rows(nb::handle array, std::string_view name) { return hold(array, name, Access::kRead, dtype_); }
  Buffer rows_out(nb::handle array, std::string_view name) { return hold(array, name, Access::kWrite, dtype_); }
  ConstBuffer read(nb::handle array, std::string_view name) { return hold(array, name, Access::kRead, {}); }
  Buffer write(nb::handle array, std::string_view name) { return hold(array, name, Access::kWrite, {}); }
  Buffer write(nb::handle array, std::string_view name, nb::handle dtype) {
    return hold(array, name, Access::kWrite, dtype_argument(dtype));
  }

 private:
  Buffer hold(nb::handle array, std::string_view name, Access access, std::optional<DType> dtype) {
    if (array.is_none()) return {};
    return held_.emplace_back(array, name, access, dtype).buffer();
  }

  std::optional<DType> dtype_;
  std::deque<ArrayView> held_;
};

void bind_expert_handle(nb::module_& module);
void bind_experts(nb::module_& module);

}  // namespace accord::python
