#pragma once
// The steps that one kind of device has. A table of host/ and one of gpu/ implement this interface.

#include <typeindex>
#include <unordered_map>

#include "accord/status.hpp"

namespace accord::engine {

class Preparation;

/// Maps each kind of call to the function that adds its steps to a program. A call is a plain struct (of ops/, or of
/// program/calls.hpp): tensors and numbers that an op has read from its node and checked. What a device has no
/// function for, it cannot run.
class StepTable {
 public:
  template <typename Call>
  using Maker = Status (*)(Preparation& op, const Call& call);

  /// `keeps_narrow_floats`: whether the steps of attention take 16-bit floats as they are; otherwise they take
  /// float32, and the results are rounded afterwards.
  explicit StepTable(bool keeps_narrow_floats) : keeps_narrow_floats_(keeps_narrow_floats) {}

  template <typename Call>
  void set(Maker<Call> maker) {
    makers_[typeid(Call)] = reinterpret_cast<AnyMaker>(maker);
  }
  /// Returns nullptr if the device has no steps for such calls.
  template <typename Call>
  Maker<Call> find() const {
    const auto found = makers_.find(typeid(Call));
    return found == makers_.end() ? nullptr : reinterpret_cast<Maker<Call>>(found->second);
  }
  bool keeps_narrow_floats() const { return keeps_narrow_floats_; }

 private:
  using AnyMaker = void (*)();
  std::unordered_map<std::type_index, AnyMaker> makers_;
  bool keeps_narrow_floats_;
};

}  // namespace accord::engine
