#pragma once
// accord.moe.ExpertGroup and accord.moe.ExpertHandle.

#include <nanobind/nanobind.h>

#include <deque>
#include <optional>
#include <string_view>

#include "accord/expert_parallel.hpp"
#include "bindings/arguments/array.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"

#define ACCORD_ROWS_SIG "accord._arrays.ArrayLike"

namespace accord::python {

namespace nb = nanobind;

/// The contents of a Python ExpertHandle.
struct MapHandle {
  explicit MapHandle(ExpertHandle made) : handle(std::move(made)) {}
  ExpertHandle handle;

  const ExpertHandle& prepared() const {
    if (!handle.prepared()) raise({StatusCode::kWrongState, "this expert handle is not prepared"});
    return handle;
  }
  /// Does the same with the map, which on a GPU is fetched now unless it has been fetched already.
  const ExpertHandle& fetched() const {
    {
      const WithoutGil without_gil;
      if (prepared_here()) (void)handle.recv_rows();
    }
    return prepared();
  }

 private:
  bool prepared_here() const { return handle.prepared() && handle.on_device().numbers.data != nullptr; }
};

/// The arrays of one call. An array of several dimensions has rows of `width` elements.
class Arrays {
 public:
  /// `device`: that of the group.
  explicit Arrays(Device device = {}) : memory_(device.type == DeviceType::kCpu ? Memory::kCpu : Memory::kAnyDevice) {}
  /// Sets the dtype of rows from now on, see ArrayView.
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
    const ArrayView& view = held_.emplace_back(array, name, access, dtype, memory_);
    const std::vector<std::int64_t> shape = view.shape();
    if (shape.size() > 1 && shape.back() != width)
      raise_invalid(std::string(name) + " has rows of " + std::to_string(shape.back()) +
                    " elements, they have to have " + std::to_string(width));
    return view.buffer();
  }

  const Memory memory_;
  std::optional<DType> dtype_;
  std::deque<ArrayView> held_;
};

/// The contents of a Python ExpertGroup.
struct GroupHandle {
  explicit GroupHandle(ExpertGroup made) : group(std::move(made)) {}
  ProcessBound<ExpertGroup> group;
  ExpertGroup& use() { return group.use("this expert group"); }
};

/// Returns `make()`. If it throws, calls `report` with the reason first.
template <typename Make, typename Report>
auto make_or_report(Make make, Report report) {
  try {
    return make();
  } catch (nb::python_error& error) {
    report(error.what());
    throw;
  } catch (const std::exception& error) {
    report(error.what());
    throw;
  }
}

/// Returns `run(group)`, which runs without the GIL and is interruptible by Ctrl-C.
template <typename Run>
Status status_of_call(ExpertGroup& group, Run run) {
  Communicator communicator = group.communicator();
  return run_collective(communicator, [&] { return run(group); });
}

/// Does the same and raises its error.
template <typename Run>
void run_call(GroupHandle& self, Run run) {
  raise_if_error(status_of_call(self.use(), run));
}

void bind_expert_handle(nb::module_& module);
/// The calls that run on all ranks: prepare, dispatch, combine and their backwards, decline.
void bind_expert_calls(nb::class_<GroupHandle>& group);
void bind_experts(nb::module_& module);

}  // namespace accord::python
