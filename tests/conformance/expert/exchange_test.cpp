// dispatch, combine and their backward passes follow the formulas, over every transport, algorithm and kind of
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accord/expert_parallel.hpp"
#include "conformance/expert/reference.hpp"
#include "ranks/thread_ranks.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::Ids;
using testing::k_of;
using testing::kSanitized;
using testing::random_ids;
using testing::run_thread_ranks;
using testing::slot_value;
using testing::Slots;
using testing::slots_of;
using testing::value;

enum class Memory { kPrivate, kWindows, kSomeWindows };

struct Way {
  std::string name;
  std::string transport;
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
  int ranks_per_host = 0;
  Memory memory = Memory::kPrivate;
};

struct Problem {
  std::vector<int> tokens;  // indexed by rank
  int experts = 0;
  int top_k = 1;
  int hidden = 1;
  int alignment = 1;
  ExpertPlacement placement = {};
};

Buffer f32(float* data, std::size_t count) { return {data, count, DType::kFloat32, {}}; }

/// Rows of one rank, either in a window or in private memory.
class Rows {
 public:
  Rows(std::size_t count, Window* window) : count_(count) {
    if (window != nullptr) {
      Result<WindowBlock> block = window->allocate(std::max<std::size_t>(count, 1) * sizeof(float));
      EXPECT_TRUE(block.ok()) << block.status().to_string();
      block_ = *block;
    } else {
      own_.resize(count);
    }
    std::fill_n(data(), count, 99.0F);
  }
  float* data() { return block_ ? reinterpret_cast<float*>(block_->bytes().data()) : own_.data(); }
  Buffer buffer() { return f32(data(), count_); }

 private:
  std::size_t count_;
  std::vector<float> own_;
  std::optional<WindowBlock> block_;
};

class Exchange : public ::testing::TestWithParam<Way> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.transport = GetParam().transport;
    return options;
  }
  ExpertGroupConfig config(const Problem& problem) const {
    ExpertGroupConfig config;
    config.experts = problem.experts;
    config.top_k = problem.top_k;
    config.hidden = problem.hidden;
    config.max_tokens_per_rank = std::max(1, *std::max_element(problem.tokens.begin(), problem.tokens.end()));
    config.alignment = problem.alignment;
    config.dtype = DType::kFloat32;
    config.placement = problem.placement;
    config.algorithm = GetParam().algorithm;
    config.ranks_per_host = GetParam().ranks_per_host;
    config.staging_bytes = 1;  // the minimum, which takes many rounds
    return config;
  }
  void expect_formulas(const Problem& problem, unsigned seed) const;
};

void Exchange::expect_formulas(const Problem& problem, unsigned seed) const {
  const Ids ids = random_ids(seed, problem.tokens, problem.experts, problem.top_k);
  const int ranks = static_cast<int>(problem.tokens.size());
  ExpertPlacement placement = problem.placement;
  if (placement.empty()) placement = *uniform_expert_placement(problem.experts, ranks);
  const Slots slots = slots_of(ids, placement, problem.alignment);
  run_thread_ranks(ranks, options(), [&](Communicator comm) {
    const Rank me = comm.rank();
    const auto here = static_cast<std::size_t>(me);
    const auto hidden = static_cast<std::size_t>(problem.hidden), top_k = static_cast<std::size_t>(problem.top_k);
    Result<ExpertGroup> group = ExpertGroup::create(comm, config(problem));
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    std::optional<Window> window;
    const bool some = GetParam().memory == Memory::kSomeWindows;
    if (GetParam().memory != Memory::kPrivate) {
      Result<Window> made = comm.window(std::size_t{4} << 20);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      window = *made;
      ASSERT_TRUE(group->add_window(*window).ok());
    }
    Window* const mine = window && !(some && me % 2 == 0) ? &*window : nullptr;

    std::vector<std::int64_t> flat;
    for (const auto& token : ids[here]) flat.insert(flat.end(), token.begin(), token.end());
    const Result<ExpertHandle> handle = group->make_handle();
    ASSERT_TRUE(handle.ok());
    const Status prepared = group->prepare(*handle, {.ids = {flat.data(), flat.size(), DType::kInt64}});
    ASSERT_TRUE(prepared.ok()) << prepared.to_string();
    const std::vector<ExpertChoice>& sources = slots.sources[here];
    ASSERT_EQ(handle->recv_rows(), static_cast<std::int64_t>(sources.size()));
    EXPECT_THAT(handle->counts(), ::testing::ElementsAreArray(slots.counts[here]));
    std::vector<ExpertChoice> received_sources(sources.size());
    handle->sources(received_sources);
    EXPECT_EQ(received_sources, sources);

    const std::size_t tokens = ids[here].size(), rows = sources.size();
    Rows x(tokens * hidden, mine), recv((rows + 1) * hidden, mine), y(rows * hidden, mine),
        result(tokens * hidden, mine);
    std::vector<float> weights(tokens * top_k), recv_weights(rows + 1, 99.0F);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t h = 0; h < hidden; ++h) x.data()[t * hidden + h] = value(me, t, h);
      for (std::size_t k = 0; k < top_k; ++k) weights[t * top_k + k] = value(me, t, 100 + k);
    }
    const Status dispatched = group->dispatch(*handle, {.tokens = x.buffer(),
                                                        .weights = f32(weights.data(), weights.size()),
                                                        .recv_tokens = recv.buffer(),
                                                        .recv_weights = f32(recv_weights.data(), recv_weights.size())});
    ASSERT_TRUE(dispatched.ok()) << dispatched.to_string();
    const auto expect_slots = [&](const float* got) {
      for (std::size_t slot = 0; slot < rows; ++slot)
        for (std::size_t h = 0; h < hidden; ++h) {
          const ExpertChoice& from = sources[slot];
          ASSERT_EQ(got[slot * hidden + h], from.rank < 0 ? 0.0F : value(from.rank, from.token, h)) << slot << " " << h;
        }
      for (std::size_t h = 0; h < hidden; ++h) ASSERT_EQ(got[rows * hidden + h], 99.0F) << "beyond the rows";
    };
    expect_slots(recv.data());
    for (std::size_t slot = 0; slot < rows; ++slot) {
      const ExpertChoice& from = sources[slot];
      ASSERT_EQ(recv_weights[slot], from.rank < 0 ? 0.0F : value(from.rank, from.token, 100 + from.k)) << slot;
    }
    ASSERT_EQ(recv_weights[rows], 99.0F);

    // combine and dispatch_backward are the same sum: over every slot that holds a row of the token.
    for (std::size_t slot = 0; slot < rows; ++slot)
      for (std::size_t h = 0; h < hidden; ++h) y.data()[slot * hidden + h] = slot_value(me, slot, h);
    const auto expect_sums = [&](const float* got, bool weighted) {
      std::vector<float> sums(tokens * hidden, 0.0F);
      for (std::size_t d = 0; d < slots.sources.size(); ++d)
        for (std::size_t slot = 0; slot < slots.sources[d].size(); ++slot) {
          const ExpertChoice& from = slots.sources[d][slot];
          if (from.rank != me) continue;
          const float weight = weighted ? value(me, from.token, 100 + from.k) : 1.0F;
          for (std::size_t h = 0; h < hidden; ++h)
            sums[from.token * hidden + h] += weight * slot_value(static_cast<Rank>(d), slot, h);
        }
      for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(got[i], sums[i]) << i;
    };
    Status combined = group->combine(*handle, {.expert_out = y.buffer(), .result = result.buffer()});
    ASSERT_TRUE(combined.ok()) << combined.to_string();
    expect_sums(result.data(), false);
    combined = group->combine(
        *handle, {.expert_out = y.buffer(), .weights = f32(weights.data(), weights.size()), .result = result.buffer()});
    ASSERT_TRUE(combined.ok()) << combined.to_string();
    expect_sums(result.data(), true);

    std::vector<float> grad_recv_weights(rows), grad_weights(tokens * top_k, 99.0F);
    for (std::size_t slot = 0; slot < rows; ++slot) grad_recv_weights[slot] = slot_value(me, slot, 1000);
    std::fill_n(result.data(), tokens * hidden, 99.0F);
    const Status backward =
        group->dispatch_backward(*handle, {.grad = y.buffer(),
                                           .grad_recv_weights = f32(grad_recv_weights.data(), rows),
                                           .grad_tokens = result.buffer(),
                                           .grad_weights = f32(grad_weights.data(), grad_weights.size())});
    ASSERT_TRUE(backward.ok()) << backward.to_string();
    expect_sums(result.data(), false);
    std::vector<float> expected(tokens * top_k, 0.0F);
    for (std::size_t d = 0; d < slots.sources.size(); ++d)
      for (std::size_t slot = 0; slot < slots.sources[d].size(); ++slot)
        if (const ExpertChoice& from = slots.sources[d][slot]; from.rank == me)
          expected[static_cast<std::size_t>(from.token) * top_k + static_cast<std::size_t>(from.k)] =
              slot_value(static_cast<Rank>(d), slot, 1000);
    EXPECT_EQ(grad_weights, expected);

    std::fill_n(recv.data(), (rows + 1) * hidden, 99.0F);
    const Status combine_backward =
        group->combine_backward(*handle, {.grad = x.buffer(), .grad_expert_out = recv.buffer()});
    ASSERT_TRUE(combine_backward.ok()) << combine_backward.to_string();
    expect_slots(recv.data());
  });
}

TEST_P(Exchange, all_four_exchanges_follow_the_formulas) {
  expect_formulas({.tokens = {5}, .experts = 3, .top_k = 2, .hidden = 5}, 1);
  expect_formulas({.tokens = {9, 4}, .experts = 4, .top_k = 3, .hidden = 33, .alignment = 4}, 2);
  expect_formulas({.tokens = {17, 0, 6, 23}, .experts = 8, .top_k = 4, .hidden = 129, .alignment = 3}, 3);
  if (!kSanitized)
    expect_formulas({.tokens = {3, 8, 0, 1, 13, 5, 7}, .experts = 14, .top_k = 8, .hidden = 16, .alignment = 8}, 4);
}

TEST_P(Exchange, placements_may_be_uneven_and_have_replicas) {
  expect_formulas({.tokens = {7, 12, 5},
                   .experts = 5,
                   .top_k = 3,
                   .hidden = 7,
                   .alignment = 2,
                   .placement = {{0, 2, 2, 4}, {}, {0, 1, 2, 3}}},
                  5);
}

TEST_P(Exchange, all_ranks_may_be_without_tokens) {
  expect_formulas({.tokens = {0, 0}, .experts = 2, .top_k = 1, .hidden = 3}, 6);
}

const Way kWays[] = {
    {"inproc", "inproc"},
    {"inproc_windows", "inproc", ExpertAlgorithm::kDirect, 0, Memory::kWindows},
    {"inproc_some_windows", "inproc", ExpertAlgorithm::kAuto, 0, Memory::kSomeWindows},
    {"shm", "shm"},
    {"shm_windows", "shm", ExpertAlgorithm::kAuto, 0, Memory::kWindows},
    {"all_to_all", "inproc", ExpertAlgorithm::kAllToAll},
    {"hierarchical", "inproc", ExpertAlgorithm::kHierarchical, 2},
    {"hierarchical_uneven", "inproc", ExpertAlgorithm::kHierarchical, 3},
    {"hierarchical_windows", "inproc", ExpertAlgorithm::kHierarchical, 2, Memory::kWindows},
    {"hierarchical_some_windows", "inproc", ExpertAlgorithm::kHierarchical, 3, Memory::kSomeWindows},
    {"ucx", "ucx"},
};
INSTANTIATE_TEST_SUITE_P(, Exchange, ::testing::ValuesIn(kWays),
                         [](const ::testing::TestParamInfo<Way>& way) { return way.param.name; });

}  // namespace
}  // namespace accord
