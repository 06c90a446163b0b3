// Engines in real processes: bit-identical results, a rank that dies, and the memory that a rank uses.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "accord/engine.hpp"
#include "ranks/process_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using engine::of;
using engine::some_ids;
using engine::TinyEncoder;
using testing::ProcessRanks;
using testing::TemporaryDirectory;

// Exit codes of the children.
enum Seen : int { kFine = 0, kNamedTheDead = 10, kWrongNumbers = 11, kOther = 12, kTooLarge = 13 };

/// Memory that all children share.
struct Board {
  std::atomic<int> runs[4] = {};
  std::atomic<std::int64_t> killed_at_ns = 0;
  float outputs[4][256] = {};
};

class EngineProcesses : public ::testing::Test {
 protected:
  EngineProcesses()
      : board_(new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~EngineProcesses() override { munmap(board_, sizeof(Board)); }

  std::string package() const { return directory_.path() + "/model.accord"; }

  Result<Communicator> join(Rank rank, int size) const {
    ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, make_file_store(directory_.path() + "/store"));
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(30);
    return Communicator::create(store, rank, size, options);
  }

  /// Loads a rank's engine and binds it to the group of all ranks.
  Result<Engine> load(Rank rank, int size) const {
    ACCORD_ASSIGN_OR_RETURN(const Communicator comm, join(rank, size));
    return Engine::load_and_bind(package(), {{"tp", comm}});
  }

  static int failed(const Status& status) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return kOther;
  }

  /// Returns the exit code of a rank whose run returned `status` after rank 1 was killed.
  int names_dead_rank(const Status& status) const {
    const Duration since = Clock::now().time_since_epoch() - Duration(board_->killed_at_ns.load());
    const bool named = status.code() == StatusCode::kPeerLost && status.ranks() == std::vector<Rank>{1};
    return named && since < std::chrono::seconds(1) ? kNamedTheDead : failed(status);
  }

  /// Kills rank 1 of three once they have run for a while. The others must name it.
  void kill_rank_1(ProcessRanks& ranks) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    while (board_->runs[0] < 20 && !deadline.passed()) std::this_thread::yield();
    ASSERT_GE(board_->runs[0].load(), 20);
    board_->killed_at_ns = Duration(Clock::now().time_since_epoch()).count();
    ranks.kill(1, SIGKILL);
    EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(20))),
              (std::vector<int>{kNamedTheDead, 128 + SIGKILL, kNamedTheDead}));
  }

  TemporaryDirectory directory_;
  Board* board_;
};

TEST_F(EngineProcesses, outputs_are_bit_identical_on_every_rank_and_match_the_model) {
  const TinyEncoder model(9);
  model.write(package());
  ProcessRanks ranks(2, [&](Rank rank) -> int {
    Result<Engine> engine = load(rank, 2);
    if (!engine.ok()) return failed(engine.status());
    Result<EngineContext> context = engine->create_context();
    std::vector<std::int64_t> ids = some_ids(6);
    const TensorView input{{ids.data(), ids.size(), DType::kInt64, {}}, {2, 3}};
    const Result<std::vector<TensorView>> outputs = context->run({&input, 1});
    if (!outputs.ok()) return failed(outputs.status());
    std::memcpy(board_->outputs[rank], (*outputs)[0].buffer.data, (*outputs)[0].buffer.bytes());
    return kFine;
  });
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(60))), (std::vector<int>{kFine, kFine}));
  const std::vector<double> expected = model.reference(some_ids(6), 3);
  ASSERT_LE(expected.size(), 256U);
  EXPECT_EQ(std::memcmp(board_->outputs[0], board_->outputs[1], expected.size() * sizeof(float)), 0);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(board_->outputs[0][i], expected[i], 2e-5);
}

TEST_F(EngineProcesses, a_rank_killed_between_runs_fails_the_runs_of_the_others_within_a_second) {
  TinyEncoder(8).write(package());
  ProcessRanks ranks(3, [&](Rank rank) -> int {
    Result<Engine> engine = load(rank, 3);
    if (!engine.ok()) return failed(engine.status());
    Result<EngineContext> context = engine->create_context();
    std::vector<std::int64_t> ids = some_ids(8);
    const TensorView input{{ids.data(), ids.size(), DType::kInt64, {}}, {2, 4}};
    while (true) {
      const Status status = context->run({&input, 1}).status();
      if (status.ok()) {
        ++board_->runs[rank];
        continue;
      }
      return names_dead_rank(status);
    }
  });
  kill_rank_1(ranks);
}

/// Layers of y = x + down(up(rms_norm(x))), divided by rows and columns. Everything between two products is one step
/// with the sum over the ranks. `reference` computes the layers in double.
class NormedLayers {
 public:
  static constexpr std::int64_t kWidth = 24, kInner = 12, kLayers = 3;

  NormedLayers() {
    std::mt19937 random(3);
    std::normal_distribution<float> values(0.0F, 0.5F);
    engine::GraphWriter writer;
    writer.symbol("l", 1, 8);
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
      for (std::int64_t i = 0; i < rows * columns; ++i) weights_[name].push_back(values(random));
      return writer.parameter(name, engine::shape_of({std::to_string(rows), std::to_string(columns)}));
    };
    const auto linear = [&](engine::ValueId input, const std::string& name, std::int64_t out, std::int64_t in) {
      return writer.node("aten.linear.default", {{"input", of(input)}, {"weight", of(add(name, out, in))}},
                         engine::shape_of({"l", std::to_string(out)}));
    };
    const engine::SymbolicShape rows = engine::shape_of({"l", std::to_string(kWidth)});
    auto x = writer.input("x", rows);
    auto normed = x;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string up = "up" + std::to_string(layer);
      const std::string down = "down" + std::to_string(layer);
      const auto inner = linear(normed, up, kInner, kWidth);
      x = writer.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(linear(inner, down, kWidth, kInner))}}, rows);
      normed = writer.node("aten.rms_norm.default",
                           {{"input", of(x)}, {"normalized_shape", engine::numbers({std::to_string(kWidth)})}}, rows);
      shardings_[up] = {"tp", 0, 2};
      shardings_[down] = {"tp", 1, 2};
    }
    writer.output(normed);
    graph_ = writer.graph();
  }

  void write(const std::string& path) const { engine::write_package(path, graph_, weights_, shardings_); }

  static std::vector<float> input(std::int64_t rows) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < rows * kWidth; ++i) x.push_back(static_cast<float>(i % 7) - 2.5F);
    return x;
  }

  std::vector<double> reference(const std::vector<float>& input) const {
    std::vector<double> result;
    for (std::size_t row = 0; row < input.size(); row += kWidth) {
      std::vector<double> x(input.begin() + static_cast<std::ptrdiff_t>(row),
                            input.begin() + static_cast<std::ptrdiff_t>(row + kWidth));
      std::vector<double> normed = x;
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        const std::vector<double> inner = product(normed, weights_.at("up" + std::to_string(layer)));
        const std::vector<double> sums = product(inner, weights_.at("down" + std::to_string(layer)));
        double squares = 0;
        for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] += sums[i]) * x[i];
        for (std::size_t i = 0; i < x.size(); ++i)
          normed[i] = x[i] / std::sqrt(squares / static_cast<double>(kWidth) + 1.1920928955078125e-07);
      }
      result.insert(result.end(), normed.begin(), normed.end());
    }
    return result;
  }

 private:
  static std::vector<double> product(const std::vector<double>& x, const std::vector<float>& weight) {
    std::vector<double> y(weight.size() / x.size());
    for (std::size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += x[i % x.size()] * double{weight[i]};
    return y;
  }

  engine::Graph graph_;
  engine::Weights weights_;
  std::map<std::string, engine::Sharding> shardings_;
};

TEST_F(EngineProcesses, a_sum_fused_with_its_norm_is_correct_and_fails_when_a_rank_dies) {
  const NormedLayers model;
  model.write(package());
  ProcessRanks ranks(3, [&](Rank rank) -> int {
    Result<Engine> engine = load(rank, 3);
    if (!engine.ok()) return failed(engine.status());
    Result<EngineContext> context = engine->create_context();
    context->set_profiling(Profiling::kOn);
    std::vector<float> x = NormedLayers::input(5);
    const TensorView input{{x.data(), x.size(), DType::kFloat32, {}}, {5, NormedLayers::kWidth}};
    while (true) {
      const Result<std::vector<TensorView>> outputs = context->run({&input, 1});
      if (outputs.ok()) {
        std::memcpy(board_->outputs[rank], (*outputs)[0].buffer.data, (*outputs)[0].buffer.bytes());
        ++board_->runs[rank];
        continue;
      }
      for (const OpTime& op : context->profile())
        if (op.op == "accord.all_reduce") return kOther;  // would be its own step
      return names_dead_rank(outputs.status());
    }
  });
  kill_rank_1(ranks);
  const std::vector<double> expected = model.reference(NormedLayers::input(5));
  ASSERT_LE(expected.size(), 256U);
  EXPECT_EQ(std::memcmp(board_->outputs[0], board_->outputs[2], expected.size() * sizeof(float)), 0);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(board_->outputs[0][i], expected[i], 2e-5);
}

// Returns the largest resident set that this process has had.
std::uint64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != "VmHWM:") continue;
    std::uint64_t kilobytes = 0;
    file >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

// Each rank has 168 MB of shard. Holding it twice would far exceed the limit of 253 MB.
TEST_F(EngineProcesses, a_rank_never_holds_its_shard_twice) {
  constexpr int kLayers = 5;
  engine::GraphWriter writer;
  writer.symbol("l", 1, 64);
  engine::Weights weights;
  std::map<std::string, engine::Sharding> shardings;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    weights[name].assign(static_cast<std::size_t>(rows * columns), 0.01F);
    return writer.parameter(name, engine::shape_of({std::to_string(rows), std::to_string(columns)}));
  };
  const auto ids = writer.input("ids", engine::shape_of({"l"}), DType::kInt64);
  auto x = writer.node("aten.embedding.default", {{"weight", of(add("table", 100, 512))}, {"indices", of(ids)}},
                       engine::shape_of({"l", "512"}));
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string up = "up" + std::to_string(layer);
    const std::string down = "down" + std::to_string(layer);
    const auto inner = writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(add(up, 16384, 512))}},
                                   engine::shape_of({"l", "16384"}));
    x = writer.node("aten.linear.default", {{"input", of(inner)}, {"weight", of(add(down, 512, 16384))}},
                    engine::shape_of({"l", "512"}));
    shardings[up] = {"tp", 0, 64};
    shardings[down] = {"tp", 1, 64};
  }
  writer.output(x);
  engine::write_package(package(), writer.graph(), weights, shardings);
  weights.clear();
  ProcessRanks ranks(2, [&](Rank rank) -> int {
    Result<Engine> engine = load(rank, 2);
    if (!engine.ok()) return failed(engine.status());
    Result<EngineContext> context = engine->create_context();
    std::vector<std::int64_t> tokens(64, 3);
    const TensorView input{{tokens.data(), tokens.size(), DType::kInt64, {}}, {64}};
    const Result<std::vector<TensorView>> outputs = context->run({&input, 1});
    if (!outputs.ok()) return failed(outputs.status());
    // Half of two weights per layer.
    constexpr std::uint64_t kShard = std::uint64_t{kLayers} * 16384 * 512 * sizeof(float);
    constexpr std::uint64_t kReplicated = 100 * 512 * sizeof(float);
    if (engine->load_report().weight_bytes_read != kShard + kReplicated) return kOther;
    const auto peak = static_cast<double>(peak_resident_bytes());
    if (peak > 0 && peak < 1.15 * static_cast<double>(kShard + kReplicated) + 60e6) return kFine;
    std::fprintf(stderr, "rank %d took %.0f bytes for %llu of weights\n", rank, peak,
                 static_cast<unsigned long long>(kShard + kReplicated));
    return kTooLarge;
  });
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(60))), (std::vector<int>{kFine, kFine}));
}

}  // namespace
}  // namespace accord
