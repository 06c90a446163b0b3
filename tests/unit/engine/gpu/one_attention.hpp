#pragma once
// An engine that consists of one attention over the cache, on the CPU and on the tests' devices.

#include <algorithm>
#include <numeric>
#include <random>

#include "unit/engine/gpu/engines.hpp"

namespace accord::testing {

/// Tensors are [1, heads, tokens, dim].
struct OneAttention {
  std::int64_t heads = 4, kv_heads = 2, head_dim = 8, value_dim = 8, window = 0;
  DType cache = DType::kFloat32;
  DType dtype = DType::kFloat32;
  bool has_biases = false;      ///< sinks, and slopes of distance
  bool values_in_keys = false;  ///< the input "v" has no effect

  EngineParts parts() const {
    using namespace engine;
    const auto text = [](std::int64_t size) { return std::to_string(size); };
    GraphWriter writer;
    writer.symbol("tokens", 1, 1000);
    const ValueId q = writer.input("q", shape_of({"1", text(heads), "tokens", text(head_dim)}), dtype);
    const ValueId k = writer.input("k", shape_of({"1", text(kv_heads), "tokens", text(head_dim)}), dtype);
    const ValueId v = writer.input("v", shape_of({"1", text(kv_heads), "tokens", text(value_dim)}), dtype);
    std::map<std::string, Argument> arguments = {
        {"query", of(q)}, {"key", of(k)}, {"layer", number(0)}, {"scale", 0.35}, {"window", number(window)}};
    arguments["value"] = values_in_keys ? Argument() : of(v);
    if (values_in_keys) arguments["value_dim"] = number(value_dim);
    const auto of_each_head = [&](double start, double step) {
      const double end = start + step * static_cast<double>(heads);
      return of(writer.node("aten.arange.start_step", {{"start", start}, {"end", end}, {"step", step}},
                            shape_of({text(heads)})));
    };
    if (has_biases) {
      arguments["sinks"] = of_each_head(-1.0, 1.5);
      arguments["slopes"] = of_each_head(0.0, 0.0625);
    }
    writer.output(writer.node("accord.attention.default", arguments,
                              shape_of({"1", "tokens", text(heads), text(value_dim)}), dtype));
    return {.name = "one", .graph = to_json(writer.graph()), .weights = {}, .sizes = {}};
  }

  struct Rows {
    std::int64_t rows = 1, context = 0;
    std::size_t sequence = 0;
  };
  using Steps = std::vector<std::vector<Rows>>;

  /// A prompt of 530 tokens and one of 21, then three tokens of each, one per step.
  static Steps prompts_and_tokens() {
    Steps steps = {{{530, 0, 0}, {21, 0, 1}}};
    for (std::int64_t step = 0; step < 3; ++step) steps.push_back({{1, 530 + step, 0}, {1, 21 + step, 1}});
    return steps;
  }

  /// Returns the outputs of the steps.
  std::vector<float> run_on(Device device, const Steps& steps = prompts_and_tokens()) const {
    constexpr std::int64_t kBlockTokens = 16;
    std::vector<std::vector<std::int32_t>> tables;
    std::int32_t count = 0;
    for (const std::vector<Rows>& step : steps) {
      for (const Rows& its : step) {
        if (tables.size() <= its.sequence) tables.resize(its.sequence + 1);
        std::vector<std::int32_t>& table = tables[its.sequence];
        while (static_cast<std::int64_t>(table.size()) * kBlockTokens < its.context + its.rows)
          table.push_back(count++);
      }
    }
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(6));
    for (std::vector<std::int32_t>& table : tables)
      for (std::int32_t& block : table) block = blocks[static_cast<std::size_t>(block)];

    Result<Engine> engine = Engine::assemble(parts(), {}, {.device = device});
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    EXPECT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    EXPECT_TRUE(context->create_cache({.blocks = count, .block_tokens = kBlockTokens, .dtype = cache}).ok());
    std::vector<float> all;
    for (unsigned step = 0; step < steps.size(); ++step) {
      std::vector<SequenceRows> sequences;
      std::int64_t tokens = 0;
      for (const Rows& its : steps[step]) {
        sequences.push_back({its.rows, its.context, tables[its.sequence]});
        tokens += its.rows;
      }
      const auto tensor = [&](std::int64_t its_heads, std::int64_t dim, unsigned seed) {
        return HostTensor(dtype, {1, its_heads, tokens, dim},
                          some_numbers(static_cast<std::size_t>(its_heads * tokens * dim), seed + step * 3));
      };
      std::vector<HostTensor> inputs = {tensor(heads, head_dim, 1), tensor(kv_heads, head_dim, 2),
                                        tensor(kv_heads, value_dim, 3)};
      std::vector<TensorView> views;
      for (HostTensor& input : inputs) views.push_back(input.view());
      const Result<std::vector<TensorView>> outputs = context->run(views, sequences);
      EXPECT_TRUE(outputs.ok()) << outputs.status().to_string();
      if (!outputs.ok()) return all;
      const std::vector<float> these = floats_of((*outputs)[0]);
      all.insert(all.end(), these.begin(), these.end());
    }
    return all;
  }
};

}  // namespace accord::testing
