// Engines for C callers. All runs of an engine use one context.
#include "accord/engine.hpp"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "accord/accord.h"
#include "accord/package.hpp"
#include "c/answer.hpp"
#include "c/bytes_out.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"

using accord::Engine;
using accord::LoadOptions;
using accord::Result;
using accord::Status;
using accord::StatusCode;
using accord::TensorView;
using accord::c::answer;
using accord::c::invalid_argument;

namespace {

// An empty list may be null.
const void* nonnull_list(const void* list, std::size_t count) { return count == 0 ? "" : list; }

Result<LoadOptions> load_options(const accord_engine_options_t& read, std::string_view function) {
  LoadOptions options{.outputs = accord::DeviceType::kCpu,
                      .threads = read.threads,
                      .canonical_ranks = read.canonical_ranks,
                      .overlap_rows = read.overlap_rows,
                      .memory_limit = read.memory_limit};
  const auto dtype_of = [&](accord_dtype_t given, std::string_view name) -> Result<std::optional<accord::DType>> {
    if (given == 0) return std::optional<accord::DType>();
    ACCORD_ASSIGN_OR_RETURN(const accord::DType dtype, accord::c::value_of(accord::c::kDTypes, given, function, name));
    return std::optional(dtype);
  };
  ACCORD_ASSIGN_OR_RETURN(options.device, accord::c::device_of(read.device, read.device_index, function));
  ACCORD_ASSIGN_OR_RETURN(options.all_reduce_dtype, dtype_of(read.all_reduce_dtype, "all_reduce_dtype"));
  ACCORD_ASSIGN_OR_RETURN(options.activation_dtype, dtype_of(read.activation_dtype, "activation_dtype"));
  return options;
}

Result<TensorView> view_of(const accord_tensor_t& tensor, std::string_view function) {
  if (tensor.dimensions < 0 || (tensor.shape == nullptr && tensor.dimensions > 0))
    return invalid_argument(function, fmt::format("an input has {} dimensions and no shape", tensor.dimensions));
  ACCORD_ASSIGN_OR_RETURN(const accord::DType dtype,
                          accord::c::value_of(accord::c::kDTypes, tensor.dtype, function, "dtype"));
  TensorView view{{tensor.data, 1, dtype, {}}, {tensor.shape, tensor.shape + tensor.dimensions}};
  for (const std::int64_t extent : view.shape) {
    if (extent < 0) return invalid_argument(function, fmt::format("an input has an extent of {}", extent));
    view.buffer.count *= static_cast<std::size_t>(extent);
  }
  return view;
}

}  // namespace

extern "C" accord_status_t accord_engine_load(const char* path, const accord_engine_group_t* groups, size_t count,
                                              const accord_engine_options_t* options, accord_engine_t** engine) {
  if (engine != nullptr) *engine = nullptr;
  return answer(__func__, {{"path", path}, {"groups", nonnull_list(groups, count)}, {"engine", engine}},
                [&](std::string_view function) -> Status {
                  std::map<std::string, accord::Communicator> communicators;
                  for (const accord_engine_group_t& group : std::span(groups, count)) {
                    if (group.name == nullptr || group.communicator == nullptr)
                      return invalid_argument(function, "a group has no name or no communicator");
                    if (!communicators.emplace(group.name, group.communicator->communicator).second)
                      return invalid_argument(function, fmt::format("group \"{}\" appears twice", group.name));
                  }
                  ACCORD_ASSIGN_OR_RETURN(const accord_engine_options_t read,
                                          accord::c::read_struct(options, function));
                  ACCORD_ASSIGN_OR_RETURN(const LoadOptions load, load_options(read, function));
                  ACCORD_ASSIGN_OR_RETURN(Engine loaded, Engine::load_and_bind(path, communicators, load));
                  *engine = new accord_engine{std::move(loaded)};
                  return {};
                });
}

extern "C" accord_status_t accord_engine_inspect(const char* path, char* buffer, size_t size, size_t* needed) {
  return answer(__func__, {{"path", path}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::string json, accord::inspect_package(path));
    return accord::c::write_out({json.c_str(), json.size() + 1}, buffer, size, needed, function);
  });
}

extern "C" accord_status_t accord_engine_run(accord_engine_t* engine, const accord_tensor_t* inputs, size_t input_count,
                                             accord_tensor_t* outputs, size_t output_count) {
  return answer(__func__,
                {{"engine", engine},
                 {"inputs", nonnull_list(inputs, input_count)},
                 {"outputs", nonnull_list(outputs, output_count)}},
                [&](std::string_view function) -> Status {
                  const std::size_t expected_inputs = engine->engine.inputs().size();
                  const std::size_t expected_outputs = engine->engine.outputs().size();
                  if (input_count != expected_inputs || output_count != expected_outputs)
                    return invalid_argument(
                        function, fmt::format("{} inputs and {} outputs were given, but the engine has {} and {}",
                                              input_count, output_count, expected_inputs, expected_outputs));
                  std::vector<TensorView> views;
                  for (const accord_tensor_t& input : std::span(inputs, input_count)) {
                    ACCORD_ASSIGN_OR_RETURN(TensorView view, view_of(input, function));
                    views.push_back(std::move(view));
                  }
                  if (!engine->context) {
                    ACCORD_ASSIGN_OR_RETURN(engine->context, engine->engine.create_context());
                  }
                  ACCORD_ASSIGN_OR_RETURN(engine->outputs, engine->context->run(views));
                  for (std::size_t i = 0; i < output_count; ++i) {
                    const TensorView& output = engine->outputs[i];
                    outputs[i] = {output.buffer.data, output.shape.data(), static_cast<int32_t>(output.shape.size()),
                                  accord::c::number_of(accord::c::kDTypes, output.buffer.dtype)};
                  }
                  return {};
                });
}

extern "C" void accord_engine_free(accord_engine_t* engine) { delete engine; }
