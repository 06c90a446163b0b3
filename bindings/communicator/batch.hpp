#pragma once
// accord.Batch and accord.Prepared: several calls that run together, once or repeatedly.

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "accord/communicator.hpp"
#include "bindings/communicator/call_arguments.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/communicator/work.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

/// Checked calls and their arrays, which each of its works holds as well.
class PreparedHandle {
 public:
  PreparedHandle(Communicator communicator, Prepared prepared, HeldArguments arguments)
      : communicator_(std::move(communicator)), prepared_(std::move(prepared)), arguments_(std::move(arguments)) {}

  void run();
  WorkHandle start();

 private:
  ProcessBound<Communicator> communicator_;
  ProcessBound<Prepared> prepared_;
  HeldArguments arguments_;
};

/// Calls that have been listed and not run yet; run(), start(), prepare() and clear() empty it.
class Batch {
 public:
  /// `communicator`: a Python Communicator.
  explicit Batch(nb::object communicator) : communicator_(std::move(communicator)) {}
  Batch(Batch&&) = default;

  Communicator& communicator() { return nb::cast<CommunicatorHandle&>(communicator_).use(); }
  void add(std::shared_ptr<const CallArguments> arguments) { arguments_.push_back(std::move(arguments)); }
  std::size_t size() const { return arguments_.size(); }
  void clear() { const HeldArguments forgotten = std::exchange(arguments_, {}); }

  void run(nb::handle timeout, nb::handle stream);
  WorkHandle start(nb::handle timeout, nb::handle stream);
  PreparedHandle prepare(nb::handle timeout, nb::handle stream);

 private:
  nb::object communicator_;
  HeldArguments arguments_;
};

/// Adds both classes and Communicator.batch(). bind_calls() adds the batch's methods for the calls.
nb::class_<Batch> bind_batch(nb::module_& module, nb::class_<CommunicatorHandle>& communicator);

}  // namespace accord::python
