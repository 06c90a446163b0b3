#pragma once
// Runs graphs of one op, and has plain tensors for slow references.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/host/run.hpp"
#include "engine/host/target.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/program/program.hpp"
#include "engine/program/region.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {

/// A whole tensor with its values; bool is stored as 0 and 1 with T = unsigned char.
template <typename T>
struct Dense {
  Sizes sizes;
  std::vector<T> values;

  std::int64_t count() const { return static_cast<std::int64_t>(values.size()); }
  T& at(const Sizes& index) {
    std::int64_t flat = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) flat = flat * sizes[i] + (sizes[i] == 1 ? 0 : index[i]);
    return values[static_cast<std::size_t>(flat)];
  }
};

template <typename T>
Dense<T> dense(const Sizes& sizes, const std::function<T(std::int64_t)>& value) {
  Dense<T> tensor{sizes, {}};
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  for (std::int64_t i = 0; i < count; ++i) tensor.values.push_back(value(i));
  return tensor;
}

/// Returns numbers between -2 and 2, the same in every run.
inline Dense<float> random_floats(const Sizes& sizes, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-2.0F, 2.0F);
  return dense<float>(sizes, [&](std::int64_t) { return values(random); });
}

/// Calls visit(index) for all indices of a tensor of `sizes`.
inline void for_each_index(const Sizes& sizes, const std::function<void(const Sizes&)>& visit) {
  Sizes index(sizes.size(), 0);
  for (const std::int64_t size : sizes) {
    if (size == 0) return;
  }
  while (true) {
    visit(index);
    auto dim = static_cast<std::ptrdiff_t>(sizes.size()) - 1;
    while (dim >= 0 && ++index[static_cast<std::size_t>(dim)] == sizes[static_cast<std::size_t>(dim)]) {
      index[static_cast<std::size_t>(dim--)] = 0;
    }
    if (dim < 0) return;
  }
}

/// Builds a graph and its input memory, then runs it.
class OpRunner {
 public:
  template <typename T>
  ValueId input(Dense<T> tensor, DType dtype) {
    SymbolicShape shape(tensor.sizes.begin(), tensor.sizes.end());
    memory_.emplace_back(tensor.values.size() * sizeof(T) + 1);
    if (!tensor.values.empty())
      std::memcpy(memory_.back().data(), tensor.values.data(), tensor.values.size() * sizeof(T));
    return writer_.input("input" + std::to_string(memory_.size()), shape, dtype);
  }
  ValueId floats(const Dense<float>& tensor) { return input(tensor, DType::kFloat32); }
  ValueId integers(const Dense<std::int64_t>& tensor) { return input(tensor, DType::kInt64); }
  ValueId bools(const Dense<unsigned char>& tensor) { return input(tensor, DType::kBool); }

  ValueId node(const std::string& op, Arguments arguments, const Sizes& sizes, DType dtype = DType::kFloat32) {
    return writer_.node(op, std::move(arguments), SymbolicShape(sizes.begin(), sizes.end()), dtype);
  }
  GraphWriter& writer() { return writer_; }

  /// Runs the graph with `output` as its only output.
  template <typename T>
  Result<std::vector<T>> run(ValueId output, int threads = 1) {
    GraphWriter whole = writer_;
    whole.output(output);
    const Graph& graph = whole.graph();
    const Parameters no_parameters;
    const std::map<std::string, int> no_groups;
    ACCORD_ASSIGN_OR_RETURN(Program program,
                            prepare_program({graph, no_parameters, host::target(), find_op, no_groups, threads}, {}));
    ACCORD_ASSIGN_OR_RETURN(const Region arena, Region::allocate(program.arena_bytes + 1, "a test"));
    // Makes a read of memory that no step has written visible.
    std::memset(arena.data(), 0xff, arena.size());
    program.place_arena(arena.data());
    for (std::size_t i = 0; i < memory_.size(); ++i)
      program.bases[static_cast<std::size_t>(program.inputs[i])] = memory_[i].data();
    const std::vector<std::vector<std::byte>> before = memory_;
    ThreadPool pool(threads);
    const host::Run run(pool);
    Execution execution{.bases = program.bases};
    execution.target = &run;
    for (const ProgramStep& step : program.steps) ACCORD_RETURN_IF_ERROR(step.run(execution));
    EXPECT_EQ(before, memory_) << "inputs must not be written";
    steps_ = program.steps.size();
    arena_bytes_ = program.arena_bytes;
    std::vector<T> values(static_cast<std::size_t>(program.outputs[0].count()));
    if (!values.empty()) std::memcpy(values.data(), execution.address(program.outputs[0]), values.size() * sizeof(T));
    return values;
  }
  /// Figures of the last run.
  std::size_t steps() const { return steps_; }
  std::size_t arena_bytes() const { return arena_bytes_; }

 private:
  GraphWriter writer_;
  std::vector<std::vector<std::byte>> memory_;
  std::size_t steps_ = 0;
  std::size_t arena_bytes_ = 0;
};

inline void expect_near(const Result<std::vector<float>>& got, const std::vector<float>& expected, float tolerance) {
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  ASSERT_EQ(got->size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan((*got)[i])) << "element " << i;
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ((*got)[i], expected[i]) << "element " << i;
    } else {
      ASSERT_NEAR((*got)[i], expected[i], tolerance * std::max(1.0F, std::fabs(expected[i]))) << "element " << i;
    }
  }
}

template <typename T>
void expect_equal(const Result<std::vector<T>>& got, const std::vector<T>& expected) {
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(*got, expected);
}

}  // namespace accord::engine
