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

/// The arrays of one call. What has several dimensions has rows of `width` elements.
class Arrays {
 public:
  /// Of rows from now on, see ArrayView.
  void set_dtype(nb::handle dtype) { dtype_ = dtype_argument(dtype); }

  ConstBuffer rows(nb::handle array, std::string_view name, int width) {
    return hold(array, name, Access::kRead, dtype_, width);
  }
  Buffer rows_out(nb::handle array, std::string_view name, int width) {
    return hold(array, name, Access::kWrite, dtype_, width);
  }
  ConstBuffer read(nb::handle array, std::string_view name, int width) {
    return hold(array, name, Access::kRead, {}, width);
  }
  Buffer write(nb::handle array, std::string_view name, int width) {
    return hold(array, name, Access::kWrite, {}, width);
  }

 private:
  Buffer hold(nb::handle array, std::string_view name, Access access, std::optional<DType> dtype, int width) {
    if (array.is_none()) return {};
    const ArrayView& view = held_.emplace_back(array, name, access, dtype);
    const std::vector<std::int64_t> shape = view.shape();
    if (shape.size() > 1 && shape.back() != width)
      raise_invalid(std::string(name) + " has rows of " + std::to_string(shape.back()) +
                    " elements, they have to have " + std::to_string(width));
    return view.buffer();
  }

  std::optional<DType> dtype_;
  std::deque<ArrayView> held_;
};

void bind_expert_handle(nb::module_& module);
void bind_experts(nb::module_& module);

}  // namespace accord::python
