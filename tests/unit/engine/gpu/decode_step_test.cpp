// The work of one decode step of a Llama of 16 layers: its kernels, and its copies between the host and the device.
#include <iostream>
#include <numeric>

#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;

/// Launches by kernel, and products of the library.
using Launches = std::map<std::string, int>;

constexpr int kLayers = 16;

Launches launches_so_far() {
  Launches launches;
  for (const auto& [kernel, count] : HostRuntime::instance().launches()) launches.emplace(kernel, count);
  launches["(library product)"] = HostBlas::instance().products();
  return launches;
}

int total_of(const Launches& launches) {
  return std::accumulate(launches.begin(), launches.end(), 0,
                         [](int sum, const auto& each) { return sum + each.second; });
}

class DecodeStep : public accord::testing::DeviceEngines {
 protected:
  // Runs a prompt of 5 tokens and two steps of one token. `work`: called with the number of each of these runs.
  template <typename Work>
  static void run_decoder(int layers, DType cache, Work work) {
    const DecoderParts decoder(DType::kBFloat16, layers);
    Result<Engine> engine = Engine::assemble(decoder.parts, {}, {.device = kGpu, .outputs = DeviceType::kCpu});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->bind().ok());
    Result<EngineContext> context = engine->create_context();
    ASSERT_TRUE(context->create_cache({.blocks = 6, .block_tokens = 16, .dtype = cache}).ok());
    static const std::vector<std::int32_t> blocks = {3, 1};
    std::int64_t length = 0;
    for (const std::int64_t count : {5, 1, 1}) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(count), 7), positions(ids.size());
      std::iota(positions.begin(), positions.end(), length);
      std::vector<HostTensor> inputs = {whole_numbers({count}, ids), whole_numbers({count}, positions),
                                        whole_numbers({1}, {count - 1})};
      const std::vector<SequenceRows> sequence = {{count, length, blocks}};
      work([&] {
        const Status ran = context->run(views_of(inputs), sequence).status();
        ASSERT_TRUE(ran.ok()) << ran.to_string();
      });
      length += count;
    }
  }

  // Returns the launches of the first step of one token, which is not a graph.
  static Launches launches_of_step(int layers, DType cache) {
    Launches launches;
    int run = 0;
    run_decoder(layers, cache, [&](const auto& body) {
      const Launches before = launches_so_far();
      body();
      if (run++ != 1) return;
      for (const auto& [kernel, count] : launches_so_far()) {
        const auto found = before.find(kernel);
        const int more = count - (found == before.end() ? 0 : found->second);
        if (more > 0) launches[kernel] = more;
      }
    });
    return launches;
  }
};

TEST_F(DecodeStep, launches_few_kernels_for_each_layer) {
  for (const DType cache : {DType::kBFloat16, DType::kInt8}) {
    SCOPED_TRACE(to_string(cache));
    const Launches all = launches_of_step(kLayers, cache), of_one = launches_of_step(1, cache);
    const int outside = total_of(of_one) * kLayers - total_of(all);  // (kLayers - 1) times those of no layer
    ASSERT_EQ(outside % (kLayers - 1), 0);
    const int for_each = (total_of(all) - outside / (kLayers - 1)) / kLayers;
    std::cout << "a decode step with a cache of " << to_string(cache) << ": " << total_of(all) << " launches, "
              << for_each << " for each layer\n";
    for (const auto& [kernel, count] : all) std::cout << "  " << count << " " << kernel << "\n";
    EXPECT_LE(for_each, 7);
  }
}

TEST_F(DecodeStep, copies_through_pinned_memory_only) {
  run_decoder(2, DType::kBFloat16, [](const auto& body) {
    const std::size_t before = HostRuntime::instance().copied_pageable();
    body();
    EXPECT_EQ(HostRuntime::instance().copied_pageable() - before, 0);
  });
}

}  // namespace
}  // namespace accord::engine
