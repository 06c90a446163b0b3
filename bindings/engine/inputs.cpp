#include "bindings/engine/inputs.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

namespace accord::python {

namespace nb = nanobind;

namespace {

std::string names_of(const std::vector<TensorInfo>& tensors) {
  std::string names;
  for (const TensorInfo& tensor : tensors) names += (names.empty() ? "" : ", ") + tensor.name;
  return names;
}

/// Returns the arguments in the order of the engine's inputs. Raises TypeError if one is missing, given twice or
/// unknown.
std::vector<nb::object> in_order(const std::vector<TensorInfo>& inputs, const nb::args& given,
                                 const nb::kwargs& named) {
  const auto fail = [&](const std::string& what) {
    throw nb::type_error((what + "; the engine's inputs are: " + names_of(inputs)).c_str());
  };
  if (given.size() > inputs.size())
    fail(std::to_string(given.size()) + " inputs were given, expected " + std::to_string(inputs.size()));
  std::vector<nb::object> ordered(inputs.size());
  for (std::size_t i = 0; i < given.size(); ++i) ordered[i] = nb::borrow(given[i]);
  for (const auto& [key, value] : named) {
    const std::string name = nb::cast<std::string>(key);
    const auto found =
        std::find_if(inputs.begin(), inputs.end(), [&](const TensorInfo& input) { return input.name == name; });
    if (found == inputs.end()) fail("unknown input \"" + name + "\"");
    nb::object& place = ordered[static_cast<std::size_t>(found - inputs.begin())];
    if (place.is_valid()) fail("input \"" + name + "\" was given twice");
    place = nb::borrow(value);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!ordered[i].is_valid()) fail("input \"" + inputs[i].name + "\" is missing");
  return ordered;
}

}  // namespace

GivenInputs::GivenInputs(const std::vector<TensorInfo>& inputs, Memory memory, const nb::args& given,
                         const nb::kwargs& named)
    : objects(in_order(inputs, given, named)) {
  for (std::size_t i = 0; i < objects.size(); ++i) {
    arrays.push_back(std::make_unique<ArrayView>(objects[i], inputs[i].name, Access::kRead, std::nullopt, memory));
    if (arrays.back()->stream().handle != nullptr) stream = arrays.back()->stream();
    views.push_back({arrays.back()->buffer(), arrays.back()->shape()});
  }
}

}  // namespace accord::python
